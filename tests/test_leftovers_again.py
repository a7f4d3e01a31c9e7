"""What would start again, what stays behind, what goes first: hints and commands on a played account."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from aws_world import IMAGE, Refusal, World, aws_server, ec2, empty_account, leftovers, listed, started  # noqa: F401
from test_leftovers_kinds import require_command

from loadsheet.cloud.leftovers.makers import maker
from loadsheet.cloud.leftovers.registry import in_turn, kinds

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
from botocore import xform_name  # noqa: E402

HERE = ("--regions", "eu-west-1", "--kinds")
ROLE = "arn:aws:iam::123456789012:role/x"


def client(service: str) -> Any:
    return boto3.client(service, region_name="eu-west-1")


def only(found: dict[str, Any]) -> dict[str, Any]:
    """The one item of a list of which all was looked at."""
    assert found["failed"] == []
    (row,) = found["items"]
    answered: dict[str, Any] = row
    return answered


def group(name: str, least: int = 0) -> str:
    """An auto-scaling group with one machine, whose id is returned."""
    scaling = client("autoscaling")
    scaling.create_launch_configuration(LaunchConfigurationName=name, ImageId=IMAGE, InstanceType="g5.xlarge")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchConfigurationName=name,
        MinSize=least,
        MaxSize=2,
        DesiredCapacity=1,
        AvailabilityZones=["eu-west-1a"],
    )
    made: dict[str, Any] = scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]
    id: str = made["Instances"][0]["InstanceId"]
    return id


def test_a_machine_of_a_group(account: World) -> None:
    """The played group replaces a terminated machine; the command that is printed instead leaves none."""
    id = group("workers")
    row = only(listed(*HERE, "instance"))
    assert "the auto-scaling group workers starts another in its place" in row["why"]
    (text,) = row["remove"]
    assert text == (
        "aws autoscaling terminate-instance-in-auto-scaling-group --region eu-west-1 "
        f"--instance-id {id} --should-decrement-desired-capacity"
    )
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=id, ShouldDecrementDesiredCapacity=True
    )
    assert listed(*HERE, "instance,auto-scaling-group", code=0)["items"] == []


def test_a_machine_goes_with_its_group(account: World) -> None:
    """Where the group's own command is in the list, its machine has none, and what it leaves is given back."""
    id = group("workers")
    rows = {row["kind"]: row for row in listed(*HERE, "instance,auto-scaling-group")["items"]}
    assert "--force-delete" in rows["auto-scaling-group"]["remove"][0]
    goes = "it goes with the auto-scaling group workers, whose command ends both"
    assert (rows["instance"]["remove"], rows["instance"]["no_command"]) == ([], goes)
    assert "lower what it wants" not in rows["instance"]["why"]
    address = ec2().allocate_address(Domain="vpc")["AllocationId"]
    ec2().associate_address(InstanceId=id, AllocationId=address)
    rows = {row["kind"]: row for row in listed(*HERE, "instance,auto-scaling-group")["items"]}
    assert [text.split()[2] for text in rows["instance"]["remove"]] == ["release-address"]
    assert rows["instance"]["why"].endswith(goes)
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="workers", ForceDelete=True)
    assert listed(*HERE, "instance,auto-scaling-group", code=0)["items"] == []


def test_a_stopped_machine_of_a_group(account: World) -> None:
    """Its volume's commands end it through the group, too, and no plain terminate-instances is among them."""
    (machine,) = started("eu-west-1", "m5.large")
    ec2().create_tags(Resources=[machine], Tags=[{"Key": "eks:cluster-name", "Value": "k"}])
    ec2().create_tags(Resources=[machine], Tags=[{"Key": "eks:nodegroup-name", "Value": "gpus"}])
    ec2().stop_instances(InstanceIds=[machine])
    row = only(listed(*HERE, "attached-volume"))
    assert row["remove"] == [
        "aws eks delete-nodegroup --region eu-west-1 --cluster-name k --nodegroup-name gpus"
    ]


#: tags as AWS and the tools set them -> words of the hint, the command in place of terminate-instances
TAGS: list[tuple[dict[str, str], str, str]] = [
    (
        {"eks:cluster-name": "k", "eks:nodegroup-name": "n", "aws:autoscaling:groupName": "eks-n-1"},
        "the node group n of the EKS cluster k",
        "aws eks delete-nodegroup",
    ),
    (
        {"aws:elasticmapreduce:job-flow-id": "j-1ABC"},
        "the EMR cluster j-1ABC",
        "aws emr terminate-clusters --region eu-west-1 --cluster-ids j-1ABC",
    ),
    (
        {"elasticbeanstalk:environment-name": "web", "aws:autoscaling:groupName": "awseb-e-1"},
        "Elastic Beanstalk environment web",
        "aws elasticbeanstalk terminate-environment",
    ),
    (
        {"AWSBatchServiceTag": "batch", "aws:autoscaling:groupName": "AWSBatch-a-asg-1"},
        "AWS Batch starts another while jobs wait",
        "aws autoscaling terminate-instance-in-auto-scaling-group",
    ),
    (
        {"AmazonECSManaged": "", "aws:autoscaling:groupName": "Infra-ECS-1"},
        "a capacity provider of ECS starts another while tasks wait",
        "aws autoscaling terminate-instance-in-auto-scaling-group",
    ),
    ({"karpenter.sh/nodepool": "gpu"}, "Karpenter's node pool gpu", ""),
    ({"parallelcluster:cluster-name": "hpc"}, "ParallelCluster's hpc", ""),
    ({"ray-cluster-name": "tune"}, "Ray's cluster tune", ""),
    ({"aws:ec2:fleet-id": "fleet-1"}, "the fleet fleet-1", ""),
    ({"aws:ec2spot:fleet-request-id": "sfr-1"}, "the spot fleet sfr-1", ""),
]


@pytest.mark.parametrize(("tags", "words", "ends"), TAGS)
def test_who_starts_it_again(tags: dict[str, str], words: str, ends: str) -> None:
    """By its tags; a tool whose machines AWS does not replace itself leaves the plain command."""
    found = maker([{"Key": k, "Value": v} for k, v in tags.items()], "eu-west-1", "i-1")
    assert found is not None
    assert words in found.again
    assert (found.remove or ("",))[0].startswith(ends)
    assert (found.remove is None) == (not ends)
    for text in found.remove or ():
        require_command(text)


def test_a_tag_that_is_no_name() -> None:
    """A tag is a text of anybody's: what the command line would read as a file gets no command."""
    tags = {"eks:cluster-name": "file:///etc/passwd", "eks:nodegroup-name": "n"}
    assert getattr(maker(tags, "eu-west-1", "i-1"), "remove", None) == ()
    assert maker({"Name": "mine"}, "eu-west-1", "i-1") is None


def test_a_machine_that_a_service_runs(account: World) -> None:
    """EC2 says itself that a service manages it: no command, and the page says why."""
    account.answer(
        "ec2:DescribeInstances",
        "<R><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name>"
        "</instanceState><instanceType>g5.xlarge</instanceType><operator><managed>true</managed>"
        "<principal>eks.amazonaws.com</principal></operator></item></instancesSet></item></reservationSet></R>",
    )
    row = only(listed(*HERE, "instance"))
    assert (row["remove"], row["no_command"]) == ([], "it is ended through eks.amazonaws.com")
    assert "no command: it is ended through eks.amazonaws.com" in leftovers(*HERE, "instance", code=1).stdout


def test_a_volume_that_a_service_runs(account: World) -> None:
    """The same of a volume that hangs on nothing."""
    account.answer(
        "ec2:DescribeVolumes",
        "<R><volumeSet><item><volumeId>vol-1</volumeId><status>available</status><operator><managed>true</managed>"
        "<principal>eks.amazonaws.com</principal></operator></item></volumeSet></R>",
    )
    row = only(listed(*HERE, "volume"))
    assert (row["remove"], row["no_command"]) == ([], "it is ended through eks.amazonaws.com")


def test_what_a_nat_gateway_leaves(account: World) -> None:
    """Its elastic address outlives it: the command for it comes second, and the played account agrees."""
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    address = ec2().allocate_address(Domain="vpc")
    made = ec2().create_nat_gateway(SubnetId=subnet, AllocationId=address["AllocationId"])
    id = made["NatGateway"]["NatGatewayId"]
    row = only(listed(*HERE, "nat-gateway,address"))
    assert f"elastic address {address['PublicIp']} stays and is billed" in row["why"]
    assert row["remove"] == [
        f"aws ec2 delete-nat-gateway --region eu-west-1 --nat-gateway-id {id}",
        f"aws ec2 release-address --region eu-west-1 --allocation-id {address['AllocationId']}",
    ]
    ec2().delete_nat_gateway(NatGatewayId=id)
    left = ec2().describe_addresses()["Addresses"]
    assert [row["AllocationId"] for row in left] == [address["AllocationId"]]


def test_what_a_balancer_leaves(account: World) -> None:
    """A network load balancer with an address of the account's: the same. By AWS's model of the answer."""
    account.answer(
        "elbv2:DescribeLoadBalancers",
        "<R><DescribeLoadBalancersResult><LoadBalancers><member><LoadBalancerName>n</LoadBalancerName>"
        "<LoadBalancerArn>arn:aws:elasticloadbalancing:eu-west-1:1:loadbalancer/net/n/1</LoadBalancerArn>"
        "<AvailabilityZones><member><LoadBalancerAddresses><member><IpAddress>192.0.2.1</IpAddress>"
        "<AllocationId>eipalloc-1</AllocationId></member></LoadBalancerAddresses></member></AvailabilityZones>"
        "</member></LoadBalancers></DescribeLoadBalancersResult></R>",
    )
    row = only(listed(*HERE, "load-balancer"))
    assert "192.0.2.1 stays" in row["why"]
    assert (
        "modify-load-balancer-attributes … --attributes Key=deletion_protection.enabled,Value=false"
        in row["why"]
    )
    assert row["remove"][1] == "aws ec2 release-address --region eu-west-1 --allocation-id eipalloc-1"
    assert row["state"] == "not told"  # and no empty word


def test_what_a_machine_leaves(account: World) -> None:
    """An elastic address outlives its machine; one that AWS lent for the machine's life does not."""
    lent, own = started("eu-west-1", "m5.large", 2)
    address = ec2().allocate_address(Domain="vpc")
    ec2().associate_address(InstanceId=own, AllocationId=address["AllocationId"])
    rows = {row["id"]: row for row in listed(*HERE, "instance")["items"]}
    assert f"elastic address {address['PublicIp']} stays" in rows[own]["why"]
    assert rows[own]["remove"] == [
        f"aws ec2 terminate-instances --region eu-west-1 --instance-ids {own}",
        f"aws ec2 release-address --region eu-west-1 --allocation-id {address['AllocationId']}",
    ]
    assert "elastic" not in rows[lent]["why"]
    # not allowed to look: said, and the machines are listed all the same
    account.refuse("ec2:DescribeAddresses", "UnauthorizedOperation", status=403)
    blind = listed(*HERE, "instance")
    assert {row["id"] for row in blind["items"]} == {lent, own}
    assert [f["permission"] for f in blind["failed"]] == ["ec2:DescribeAddresses"]


def test_a_dedicated_host(account: World) -> None:
    """Billed with or without machines: found until it is released."""
    (id,) = ec2().allocate_hosts(AvailabilityZone="eu-west-1a", InstanceType="p3.16xlarge", Quantity=1)[
        "HostIds"
    ]
    row = only(listed(*HERE, "dedicated-host", "--price", "dedicated-host=30/h"))
    assert (row["id"], row["type"], row["per_hour"]) == (id, "p3.16xlarge", 30.0)
    assert row["remove"] == [f"aws ec2 release-hosts --region eu-west-1 --host-ids {id}"]
    ec2().release_hosts(HostIds=[id])
    assert listed(*HERE, "dedicated-host", code=0)["items"] == []


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        (
            "<placement><tenancy>host</tenancy><hostId>h-1</hostId></placement>",
            "billed by its dedicated host h-1",
        ),
        ("<instanceLifecycle>capacity-block</instanceLifecycle>", "paid in advance with its capacity block"),
        ("<placement><tenancy>default</tenancy></placement>", "p3.16xlarge is billed while it runs"),
    ],
)
def test_what_is_billed_in_its_place(account: World, inside: str, why: str) -> None:
    """A machine on a dedicated host, or of a capacity block, has no price of its own: nothing is counted twice."""
    account.answer(
        "ec2:DescribeInstances",
        "<R><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name>"
        f"</instanceState><instanceType>p3.16xlarge</instanceType>{inside}</item></instancesSet></item>"
        "</reservationSet></R>",
    )
    found = listed(*HERE, "instance", "--price", "p3.16xlarge=24.48/h")
    assert why in only(found)["why"]
    assert found["cost"]["per_hour"] == (24.48 if "is billed while" in why else None)
    assert found["cost"]["without_price"] == 0


def test_a_host_does_not_hide_a_stolen_key(account: World) -> None:
    """GPU machines on a host in a foreign region are loud all the same: a host is started with machines."""
    started("sa-east-1", "p3.16xlarge")
    ec2("sa-east-1").allocate_hosts(AvailabilityZone="sa-east-1a", InstanceType="p3.16xlarge", Quantity=1)
    found = listed("--regions", "sa-east-1", "--kinds", "instance,dedicated-host")
    assert [row["loud"] for row in found["items"] if row["kind"] == "instance"] == [True]


def test_a_cluster_goes_last(account: World) -> None:
    """EKS refuses to delete a cluster with node groups: theirs come first."""
    eks = client("eks")
    eks.create_cluster(name="k", roleArn=ROLE, resourcesVpcConfig={})
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    eks.create_nodegroup(clusterName="k", nodegroupName="gpus", subnets=[subnet], nodeRole=ROLE)
    with pytest.raises(eks.exceptions.ResourceInUseException):
        eks.delete_cluster(name="k")
    row = only(listed(*HERE, "eks-cluster"))
    assert [shlex.split(text)[2] for text in row["remove"]] == ["delete-nodegroup", "delete-cluster"]
    # that it is there is known, and that it costs, where it may not be described
    denied = Refusal("AccessDeniedException", 403)
    account.answer("eks:GET", lambda request: denied if request["Path"] == "/clusters/k" else None)
    found = listed(*HERE, "eks-cluster")
    assert [(row["id"], row["state"]) for row in found["items"]] == [("k", "not told")]
    assert [(f["id"], f["permission"]) for f in found["failed"]] == [("k", "eks:DescribeCluster")]


def test_a_file_system_goes_after_its_targets(account: World) -> None:
    """EFS refuses to delete a file system that is mounted: the commands for its mount targets come first."""
    efs = client("efs")
    id = efs.create_file_system()["FileSystemId"]
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    target = efs.create_mount_target(FileSystemId=id, SubnetId=subnet)["MountTargetId"]
    with pytest.raises(efs.exceptions.ClientError, match="FileSystemInUse"):
        efs.delete_file_system(FileSystemId=id)
    row = only(listed(*HERE, "file-system"))
    assert row["remove"] == [
        f"aws efs delete-mount-target --region eu-west-1 --mount-target-id {target}",
        f"aws efs delete-file-system --region eu-west-1 --file-system-id {id}",
    ]
    assert "1 mount target first" in row["why"]


def test_what_it_belongs_to(account: World) -> None:
    """A volume of a claim of Kubernetes, a file system of SageMaker: what goes first is said."""
    claim = {"Key": "kubernetes.io/created-for/pvc/name", "Value": "data"}
    ec2().create_volume(
        Size=1,
        AvailabilityZone="eu-west-1a",
        TagSpecifications=[{"ResourceType": "volume", "Tags": [claim]}],
    )
    domain = "arn:aws:sagemaker:eu-west-1:123456789012:domain/d-1"
    client("efs").create_file_system(Tags=[{"Key": "ManagedByAmazonSageMakerResource", "Value": domain}])
    found = {row["kind"]: row["why"] for row in listed(*HERE, "volume,file-system")["items"]}
    assert "delete the claim in its cluster first" in found["volume"]
    assert "SageMaker made it for domain/d-1" in found["file-system"]


def test_the_order_of_removal(account: World) -> None:
    """What starts machines stands before them, NAT before its address; the page says the order and keeps it."""
    group("workers")
    ec2().allocate_address(Domain="vpc")
    ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")
    asked = (*HERE, "address,auto-scaling-group,instance,volume", "--price", "address=9/h")
    lines = leftovers(*asked, code=1).stdout.splitlines()
    told = " ".join(" ".join(lines).split()).partition("in which they stand here: ")[2].partition(".")[0]
    assert told.split(", then ") in (
        ["auto-scaling-group", "instance, volume", "address"],
        ["auto-scaling-group", "volume, instance", "address"],
    )
    heads = [line.split("   ")[0] for line in lines if line.split("   ")[0] in kinds()]
    assert heads[0] == "auto-scaling-group"
    assert set(heads[1:3]) == {"instance", "volume"}
    assert heads[3] == "address"  # the dearest of them, and after the others all the same
    before = {name: n for n, names in in_turn(kinds()) for name in names}
    for first, then in (
        ("spot-request", "instance"),
        ("fleet", "instance"),
        ("auto-scaling-group", "instance"),
        ("nat-gateway", "address"),
        ("image", "snapshot"),
        ("instance", "eks-cluster"),
        ("instance", "dedicated-host"),
        ("instance", "file-system"),
        ("attached-volume", "instance"),
    ):
        assert before[first] < before[then]


def test_the_list_says_that_it_is_not_complete(account: World) -> None:
    """What is not looked at ends with what no list holds."""
    found = listed(*HERE, "address", code=0)
    assert found["not_looked"][-1]["what"] == "whatever else there is"
    text = leftovers(*HERE, "address", code=0).stdout
    assert "not complete either" in " ".join(text.split())


def carry_out(text: str) -> None:
    """A printed command, done in the played account."""
    _, service, verb, *options = shlex.split(text)
    values = dict(zip(options[::2], options[1::2], strict=True))
    api = boto3.client(service, region_name=values.pop("--region"))
    (name,) = [n for n in api.meta.service_model.operation_names if xform_name(n, "-") == verb]
    model = api.meta.service_model.operation_model(name)
    members = {"--" + xform_name(key, "-"): (key, shape) for key, shape in model.input_shape.members.items()}
    given: dict[str, Any] = {}
    for option, value in values.items():
        key, shape = members[option]
        given[key] = (
            json.loads(value) if value.startswith("[") else [value] if shape.type_name == "list" else value
        )
    getattr(api, xform_name(name))(**given)


def test_the_order_of_the_commands(account: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from top to bottom nothing is left, though one machine keeps two volumes; and none stands there twice."""
    monkeypatch.setenv("COLUMNS", "1000")
    disks = [
        {"DeviceName": f"/dev/sd{letter}", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}}
        for letter in "abc"
    ]
    made = ec2().run_instances(
        ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="m5.large", BlockDeviceMappings=disks[:2]
    )
    stopped = made["Instances"][0]["InstanceId"]
    ec2().stop_instances(InstanceIds=[stopped])
    ec2().run_instances(
        ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="m5.large", BlockDeviceMappings=disks[2:]
    )
    asked = (*HERE, "instance,attached-volume,volume", "--price", "instance=9/h")
    text = leftovers(*asked, code=1).stdout
    lines = text.partition("NOT LOOKED AT")[0].splitlines()
    commands = [line.partition("$ ")[2] for line in lines if line.strip().startswith("$ aws")]
    assert len(commands) == len(set(commands)) == 4
    assert "its commands stand above" in text
    for command in commands:
        carry_out(command)
    assert listed(*asked, code=0)["items"] == []


def test_the_order_that_is_told(account: World) -> None:
    """The kinds stand in the sentence as on the page: within a step by what they cost, and not by their names."""
    ec2().allocate_address(Domain="vpc")
    ec2().create_volume(Size=1, AvailabilityZone="eu-west-1a")
    started("eu-west-1", "m5.large", 6, stays=True)
    asked = (*HERE, "address,instance,volume,attached-volume", "--price", "volume=900/h")
    text = leftovers(*asked, code=1).stdout
    flat = " ".join(text.split())
    assert "in which they stand here: attached-volume, then volume, instance, then address." in flat
    assert "With --all none is left out." in flat
    heads = [line.split("   ")[0] for line in text.splitlines() if line.split("   ")[0] in kinds()]
    assert heads == ["attached-volume", "volume", "instance", "address"]
    assert "With --all" not in leftovers(*asked, "--all", code=1).stdout
