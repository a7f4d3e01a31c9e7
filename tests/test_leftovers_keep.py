"""What is meant to stay: named one by one in a file, shown in a line of its own, no reason for exit status 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aws_world import World, aws_server, ec2, empty_account, leftovers, listed, started  # noqa: F401
from terminal import refused

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
HERE = ("--regions", "eu-west-1", "--kinds", "volume,address")


def volume() -> str:
    made: str = ec2().create_volume(Size=100, AvailabilityZone="eu-west-1a")["VolumeId"]
    return made


def file(folder: Path, *lines: str) -> str:
    path = folder / "stay.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_what_is_meant_to_stay(account: World, tmp_path: Path) -> None:
    """Found, shown, priced apart; exit status 0 if nothing else is there, 1 with one thing more."""
    ids = sorted(volume() for _ in range(3))
    keep = file(tmp_path, "# ours", "", *(f"volume  eu-west-1\t{id}" for id in ids))
    asked = (*HERE, "--keep", keep, "--price", "volume=0.073/GB-month")
    found = listed(*asked, code=0)
    assert found["items"] == []
    assert [row["id"] for row in found["kept"]] == ids
    assert found["keep_not_found"] == []
    assert found["cost"]["per_hour"] is None
    assert found["kept"][0]["per_hour"] == pytest.approx(100 * 0.073 / 730)
    text = " ".join(leftovers(*asked, code=0).stdout.split())
    assert text.startswith("NOTHING FOUND BUT WHAT IS MEANT TO STAY in what was looked at: 2 kinds")
    assert "meant to stay: 3, 0.03 an hour at your prices: " in text
    assert all(id in text for id in ids)
    another = volume()
    found = listed(*asked, code=1)
    assert [row["id"] for row in found["items"]] == [another]
    assert len(found["kept"]) == 3
    text = leftovers(*asked, code=1).stdout
    assert text.startswith("STILL THERE   1 thing in 1 region")
    assert "meant to stay: 3" in text


def test_an_exact_name(account: World, tmp_path: Path) -> None:
    """Another region, another kind, a beginning of the name or a pattern keeps nothing, and each is said."""
    id = volume()
    rows = [
        f"volume us-east-1 {id}",
        f"snapshot eu-west-1 {id}",
        f"volume eu-west-1 {id[:-1]}",
        "volume eu-west-1 *",
        "volume eu-west-1 vol-gone",
    ]
    asked = (*HERE, "--keep", file(tmp_path, *rows))
    found = listed(*asked, code=1)
    assert [row["id"] for row in found["items"]] == [id]
    assert found["kept"] == []
    told = [(row["kind"], row["region"], row["id"], row["looked"]) for row in found["keep_not_found"]]
    assert told == [
        ("volume", "us-east-1", id, False),
        ("snapshot", "eu-west-1", id, False),
        ("volume", "eu-west-1", id[:-1], True),
        ("volume", "eu-west-1", "*", True),
        ("volume", "eu-west-1", "vol-gone", True),
    ]
    text = " ".join(leftovers(*asked, code=1).stdout.split())
    assert "named to stay, and not found: gone, or another name: 3:" in text
    assert "volume vol-gone in eu-west-1" in text
    assert "named to stay, and not looked at: 2:" in text
    # what it names is gone and nothing else is there: that is said, and is no left-over
    ec2().delete_volume(VolumeId=id)
    assert "vol-gone" in leftovers(*HERE, "--keep", file(tmp_path, rows[-1]), code=0).stdout


def test_what_could_not_be_looked_at_counts(account: World, tmp_path: Path) -> None:
    """All that is found may stay, and still nobody knows what is in the rest: exit status 1, and "not looked at"."""
    id = volume()
    asked = (*HERE, "--keep", file(tmp_path, f"volume eu-west-1 {id}", "address eu-west-1 eipalloc-1"))
    account.refuse("ec2:DescribeAddresses", "UnauthorizedOperation", status=403)
    found = listed(*asked, code=1)
    assert (found["items"], len(found["kept"])) == ([], 1)
    assert [(row["id"], row["looked"]) for row in found["keep_not_found"]] == [("eipalloc-1", False)]
    assert leftovers(*asked, code=1).stdout.startswith("NOT KNOWN")


def test_names_with_spaces_and_buckets(account: World, tmp_path: Path) -> None:
    """A bucket stands under its own region, a name may hold blanks, and a file may begin with a mark of its order."""
    s3 = boto3.client("s3", region_name="eu-west-1")
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    upload = s3.create_multipart_upload(Bucket="mine", Key="step 1 of 2.pt")["UploadId"]
    s3.put_object(Bucket="mine", Key="a", Body=b"1")
    path = tmp_path / "stay.txt"
    path.write_bytes(
        b"\xef\xbb\xbfbucket eu-west-1 mine\r\nmultipart-upload eu-west-1 mine/step 1 of 2.pt %s\r\n"
        % upload.encode()
    )
    asked = ("--regions", "eu-west-1", "--kinds", "bucket,multipart-upload", "--keep", str(path))
    found = listed(*asked, code=0)
    assert [row["kind"] for row in found["kept"]] == ["bucket", "multipart-upload"]


def test_it_is_saved_and_compared_all_the_same(account: World, tmp_path: Path) -> None:
    """The saved list holds what stays, so that it is not new on the day when the file is left out."""
    id = volume()
    asked = (*HERE, "--keep", file(tmp_path, f"volume eu-west-1 {id}"))
    saved = str(tmp_path / "today.json")
    listed(*asked, "--save", saved, code=0)
    assert [row["id"] for row in json.loads(Path(saved).read_text())["items"]] == [id]
    found = listed(*HERE, "--compare", saved, code=1)
    assert (found["compared"]["new"], found["compared"]["gone"]) == ([], [])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("volume vol-1", "row 2"),
        ("vol-1", "kind, region and id"),
        ("volumes eu-west-1 vol-1", "`volume`"),
        ("\udce9", "UTF-8"),
    ],
)
def test_a_file_that_names_nothing(line: str, words: str, tmp_path: Path) -> None:
    """Refused with its row before anything is asked: an entry that keeps nothing must not look like one that does."""
    path = tmp_path / "stay.txt"
    path.write_bytes(b"# first\n" + line.encode(errors="surrogateescape") + b"\n")
    refused("leftovers", "--keep", str(path), words=words)
    refused("leftovers", "--keep", str(tmp_path / "none.txt"), words="no such file")


def bucket(name: str, region: str) -> None:
    s3 = boto3.client("s3", region_name=region)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
    s3.put_object(Bucket=name, Key="a", Body=b"1")


def test_buckets_of_a_region_that_was_not_named(account: World, tmp_path: Path) -> None:
    """They are asked of the whole account and listed for the named regions: in the others nothing was looked at."""
    bucket("irish", "eu-west-1")
    bucket("stockholm", "eu-north-1")
    saved = str(tmp_path / "today.json")
    assert listed("--kinds", "bucket", "--regions", "eu-west-1", "--save", saved)["only"] == ["eu-west-1"]
    keep = file(tmp_path, "bucket eu-west-1 irish", "bucket eu-north-1 gone")
    found = listed("--kinds", "bucket", "--regions", "eu-north-1", "--compare", saved, "--keep", keep)
    told = {part: [row["id"] for row in found["compared"][part]] for part in ("new", "gone", "not_told")}
    assert told == {"new": [], "gone": [], "not_told": ["stockholm", "irish"]}
    assert [(row["id"], row["looked"]) for row in found["keep_not_found"]] == [
        ("irish", False),
        ("gone", True),
    ]
    # on the next day all regions are looked at: what was in none of the first day's is not new, what stays is there
    both = listed("--kinds", "bucket", "--compare", saved)["compared"]
    assert ([row["id"] for row in both["not_told"]], both["new"], both["gone"]) == (["stockholm"], [], [])
    # and with all regions on both days a bucket that came is new
    listed("--kinds", "bucket", "--save", saved)
    bucket("frankfurt", "eu-central-1")
    assert [row["id"] for row in listed("--kinds", "bucket", "--compare", saved)["compared"]["new"]] == [
        "frankfurt"
    ]


def test_a_list_that_does_not_say_which_regions(account: World, tmp_path: Path) -> None:
    """Nobody knows whether they were all: no bucket is new or gone."""
    bucket("irish", "eu-west-1")
    saved = tmp_path / "today.json"
    listed("--kinds", "bucket", "--save", str(saved))
    data = json.loads(saved.read_text())
    del data["only"]
    data["items"] = []
    saved.write_text(json.dumps(data))
    found = listed("--kinds", "bucket", "--compare", str(saved))["compared"]
    assert ([row["id"] for row in found["not_told"]], found["new"]) == (["irish"], [])


def test_a_second_upload_of_one_key(account: World, tmp_path: Path) -> None:
    """Is another thing: what was meant to stay yesterday does not cover it, and it is new."""
    s3 = boto3.client("s3", region_name="eu-west-1")
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.create_multipart_upload(Bucket="mine", Key="step.pt")
    asked = ("--regions", "eu-west-1", "--kinds", "multipart-upload")
    saved = str(tmp_path / "today.json")
    (row,) = listed(*asked, "--save", saved)["items"]
    keep = file(tmp_path, f"multipart-upload eu-west-1 {row['id']}")
    assert listed(*asked, "--keep", keep, code=0)["items"] == []
    second = s3.create_multipart_upload(Bucket="mine", Key="step.pt")["UploadId"]
    found = listed(*asked, "--keep", keep, "--compare", saved)
    assert [item["id"] for item in found["items"]] == [f"mine/step.pt {second}"]
    assert [item["id"] for item in found["compared"]["new"]] == [f"mine/step.pt {second}"]


def test_two_uploads_with_the_longest_key(account: World) -> None:
    """A key of 1,024 bytes does not push the upload's own id out of the name."""
    s3 = boto3.client("s3", region_name="eu-west-1")
    s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for _ in range(2):
        s3.create_multipart_upload(Bucket="mine", Key="k" * 1024)
    found = listed("--regions", "eu-west-1", "--kinds", "multipart-upload")["items"]
    assert len({row["id"] for row in found}) == len(found) == 2


@pytest.mark.parametrize("time", ["1e30", "-1", "true", "null", "1e400", '"x"'])
def test_a_list_of_no_time(time: str, tmp_path: Path) -> None:
    """Refused in one line."""
    path = tmp_path / "x.json"
    path.write_text(f'{{"schema": 1, "time": {time}, "items": [], "looked": [], "only": []}}')
    refused("leftovers", "--compare", str(path), words="list of left-overs")
    path.write_text('{"schema": 1, "time": 1.0, "items": [], "looked": [], "only": "all"}')
    refused("leftovers", "--compare", str(path), words="no list of regions")
