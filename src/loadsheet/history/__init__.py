"""What finished and interrupted runs left: listed, compared, plotted, exported, tidied up."""
