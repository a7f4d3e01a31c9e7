"""How a thing ends by the service's own rules, what is going already, and what costs though it is easily missed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from aws_world import ACCOUNT, World, aws_server, ec2, empty_account, leftovers, listed, started, xml  # noqa: F401
from test_leftovers_kinds import require_command

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
HERE = ("--regions", "eu-west-1", "--kinds")
OTHER = "999999999999"


def tag(name: str, value: Any) -> str:
    """XML of a value."""
    if isinstance(value, dict):
        value = "".join(tag(*pair) for pair in value.items())
    elif isinstance(value, list):
        value = "".join(tag("member", each) for each in value)
    return f"<{name}>{value}</{name}>"


def rows(account: World, kind: str, code: int = 1) -> list[dict[str, Any]]:
    """What is listed of a kind, all of which was looked at; its commands are those of AWS."""
    found = listed(*HERE, kind, code=code)
    assert found["failed"] == []
    for row in found["items"]:
        for text in row["remove"]:
            require_command(text)
    answered: list[dict[str, Any]] = found["items"]
    return answered


def databases(account: World, *given: dict[str, Any]) -> None:
    """RDS as it would list these."""
    told = [
        {"DBInstanceIdentifier": "db", "Engine": "mysql", "DBInstanceStatus": "available", **row}
        for row in given
    ]
    inside = "".join(tag("DBInstance", row) for row in told)
    account.answer(
        "rds:DescribeDBInstances", xml("DescribeDBInstances", f"<DBInstances>{inside}</DBInstances>")
    )


def ends(row: dict[str, Any]) -> list[str]:
    """The commands without program, service and region."""
    return [" ".join([shlex.split(text)[2], *shlex.split(text)[5:]]) for text in row["remove"]]


KEPT = "delete-db-instance --db-instance-identifier db --final-db-snapshot-identifier db-final"
LOST = "delete-db-instance --db-instance-identifier db --skip-final-snapshot"


@pytest.mark.parametrize(
    ("given", "commands", "why"),
    [
        ({}, [KEPT], "the command keeps a last snapshot"),
        ({"ReadReplicaSourceDBInstanceIdentifier": "main"}, [LOST], "a replica of main"),
        ({"ReadReplicaSourceDBClusterIdentifier": "c"}, [LOST], "a replica of c"),
        ({"DBInstanceStatus": "failed"}, [LOST], "what is in it is lost"),
        ({"DBInstanceStatus": "incompatible-restore"}, [LOST], "what is in it is lost"),
        ({"DBInstanceStatus": "incompatible-network"}, [LOST], "what is in it is lost"),
        ({"DBInstanceStatus": "incompatible-parameters"}, [KEPT], "the command keeps a last snapshot"),
        ({"Engine": "custom-oracle-ee"}, [LOST], "what is in it is lost"),
        (
            {"Engine": "aurora-mysql", "DBClusterIdentifier": "c", "DeletionProtection": "true"},
            ["delete-db-instance --db-instance-identifier db"],
            "that of its cluster c, which is billed until it is deleted",
        ),
        (
            {"Engine": "mysql", "DBClusterIdentifier": "c"},
            ["delete-db-cluster --db-cluster-identifier c --final-db-snapshot-identifier c-final"],
            "it goes with its cluster c",
        ),
        (
            {"DeletionProtection": "true"},
            [
                "modify-db-instance --db-instance-identifier db --no-deletion-protection --apply-immediately",
                KEPT,
            ],
            "protected from deletion",
        ),
    ],
)
def test_how_a_database_ends(account: World, given: dict[str, Any], commands: list[str], why: str) -> None:
    """By the documentation of DeleteDBInstance: of some there is no last snapshot, and the command says so."""
    databases(account, given)
    (row,) = rows(account, "database")
    assert ends(row) == commands
    assert why in row["why"]


def test_a_replica_goes_before_its_source(account: World) -> None:
    """It would go on by itself without one; the page keeps the order though the source is dearer."""
    copy = {"ReadReplicaSourceDBInstanceIdentifier": "main", "DBInstanceClass": "db.t3.small"}
    main = {"ReadReplicaDBInstanceIdentifiers": {"ReadReplicaDBInstanceIdentifier": "copy"}}
    middle = {
        "ReadReplicaSourceDBInstanceIdentifier": "main",
        "ReadReplicaDBInstanceIdentifiers": {"ReadReplicaDBInstanceIdentifier": "copy"},
    }
    databases(
        account,
        {"DBInstanceIdentifier": "main", "DBInstanceClass": "db.r5.large", **main},
        {"DBInstanceIdentifier": "middle", "DBInstanceClass": "db.m5.large", **middle},
        {"DBInstanceIdentifier": "copy", **copy},
    )
    prices = ("--price", "db.r5.large=9/h", "--price", "db.m5.large=5/h", "--price", "db.t3.small=1/h")
    text = leftovers(*HERE, "database", *prices, code=1).stdout
    at = [text.index(f"--db-instance-identifier {name}") for name in ("copy", "middle", "main")]
    assert at == sorted(at)
    assert "its replicas go first" in " ".join(text.split())


def test_file_systems_of_fsx(account: World) -> None:
    """ONTAP's volumes and virtual machines go first, OpenZFS takes its own along, and what leaves a backup says so."""
    account.answer(
        "fsx:DescribeFileSystems",
        {
            "FileSystems": [
                {"FileSystemId": f"fs-{form.lower()}", "FileSystemType": form, "Lifecycle": "AVAILABLE"}
                for form in ("LUSTRE", "ONTAP", "OPENZFS", "WINDOWS")
            ]
        },
    )
    volumes = [
        {"VolumeId": "fsvol-root", "OntapConfiguration": {"StorageVirtualMachineRoot": True}},
        {"VolumeId": "fsvol-1", "OntapConfiguration": {"StorageVirtualMachineRoot": False}},
    ]
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"Volumes": volumes}

    account.answer("fsx:DescribeVolumes", answer)
    account.answer(
        "fsx:DescribeStorageVirtualMachines",
        {"StorageVirtualMachines": [{"StorageVirtualMachineId": "svm-1"}]},
    )
    found = {row["type"]: row for row in rows(account, "fsx-file-system")}
    assert [request["Filters"] for request in asked] == [[{"Name": "file-system-id", "Values": ["fs-ontap"]}]]
    assert ends(found["ontap"]) == [
        "delete-volume --volume-id fsvol-1",
        "delete-storage-virtual-machine --storage-virtual-machine-id svm-1",
        "delete-file-system --file-system-id fs-ontap",
    ]
    assert ends(found["openzfs"]) == [
        "delete-file-system --file-system-id fs-openzfs "
        "--open-zfs-configuration Options=DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"
    ]
    backup = {form: "a backup, which is billed" in row["why"] for form, row in found.items()}
    assert backup == {"lustre": False, "ontap": True, "openzfs": True, "windows": True}
    # not allowed to see the volumes: the file system is listed, with what is not known
    account.refuse("fsx:DescribeVolumes", "AccessDeniedException")
    blind = listed(*HERE, "fsx-file-system")
    assert [(f["id"], f["permission"]) for f in blind["failed"]] == [("fs-ontap", "fsx:DescribeVolumes")]
    assert "not known" in next(row["why"] for row in blind["items"] if row["type"] == "ontap")


def test_a_protected_cluster(account: World) -> None:
    """EKS refuses to delete it before its protection is off."""
    account.answer(
        "eks:GET",
        lambda request: {
            "/clusters": {"clusters": ["k"]},
            "/clusters/k": {"cluster": {"name": "k", "status": "ACTIVE", "deletionProtection": True}},
            "/clusters/k/node-groups": {"nodegroups": []},
            "/clusters/k/fargate-profiles": {"fargateProfileNames": []},
        }[request["Path"]],
    )
    (row,) = rows(account, "eks-cluster")
    assert ends(row) == ["update-cluster-config --name k --no-deletion-protection", "delete-cluster --name k"]
    assert "protected from deletion" in row["why"]


def played(account: World, operation: str, items: str, *given: dict[str, Any]) -> None:
    """EC2 as it would list these."""
    account.answer(f"ec2:{operation}", f"<R>{tag(items, ''.join(tag('item', row) for row in given))}</R>")


@pytest.mark.parametrize(
    ("kind", "operation", "items", "given", "reason"),
    [
        (
            "vpc-endpoint", "DescribeVpcEndpoints", "vpcEndpointSet",
            {"vpcEndpointId": "vpce-1", "vpcEndpointType": "Interface", "requesterManaged": "true"},
            "it is ended through the service that made it",
        ),
        (
            "snapshot", "DescribeSnapshots", "snapshotSet",
            {"snapshotId": "snap-1", "description": "This snapshot is created by the AWS Backup service."},
            "it is ended through AWS Backup",
        ),
        (
            "image", "DescribeImages", "imagesSet",
            {"imageId": "ami-1", "tagSet": {"item": {"key": "aws:backup:source-resource", "value": "i-1"}}},
            "it is ended through AWS Backup",
        ),
        (
            "capacity-reservation", "DescribeCapacityReservations", "capacityReservationSet",
            {"capacityReservationId": "cr-1", "state": "scheduled", "instanceType": "p5.48xlarge"},
            "create-capacity-reservation-cancellation-quote",
        ),
        (
            "capacity-reservation", "DescribeCapacityReservations", "capacityReservationSet",
            {"capacityReservationId": "cr-1", "state": "active", "instanceType": "p5.48xlarge",
             "commitmentInfo": {"commitmentEndDate": "2999-01-01T00:00:00Z"}},
            "create-capacity-reservation-cancellation-quote",
        ),
    ],
)  # fmt: skip
def test_a_command_that_would_be_refused(
    account: World, kind: str, operation: str, items: str, given: dict[str, Any], reason: str
) -> None:
    """Is not printed, and the reason is."""
    played(account, operation, items, given)
    (row,) = rows(account, kind)
    assert row["remove"] == []
    assert reason in row["no_command"]


def test_a_commitment_that_is_over(account: World) -> None:
    """The reservation can be cancelled again."""
    given = {
        "capacityReservationId": "cr-1",
        "state": "active",
        "commitmentInfo": {"commitmentEndDate": "2001-01-01T00:00:00Z"},
    }
    played(account, "DescribeCapacityReservations", "capacityReservationSet", given)
    assert ends(rows(account, "capacity-reservation")[0]) == [
        "cancel-capacity-reservation --capacity-reservation-id cr-1"
    ]


def test_what_another_account_has_shared(account: World) -> None:
    """Reservations and hosts of others are theirs, unless what is not in use is billed to us."""
    free = {
        "state": "active",
        "instanceType": "p5.48xlarge",
        "totalInstanceCount": 2,
        "availableInstanceCount": 2,
    }
    played(
        account, "DescribeCapacityReservations", "capacityReservationSet",
        {"capacityReservationId": "cr-own", "ownerId": ACCOUNT, **free},
        {"capacityReservationId": "cr-theirs", "ownerId": OTHER, **free},
        {"capacityReservationId": "cr-billed", "ownerId": OTHER, "unusedReservationBillingOwnerId": ACCOUNT, **free},
        {"capacityReservationId": "cr-given", "ownerId": ACCOUNT, "unusedReservationBillingOwnerId": OTHER, **free},
    )  # fmt: skip
    played(
        account, "DescribeHosts", "hostSet",
        {"hostId": "h-own", "ownerId": ACCOUNT, "state": "available"},
        {"hostId": "h-theirs", "ownerId": OTHER, "state": "available"},
    )  # fmt: skip
    found = listed(*HERE, "capacity-reservation,dedicated-host", "--price", "p5.48xlarge=10/h")["items"]
    prices = {row["id"]: row["per_hour"] for row in found}
    assert prices == {"cr-own": 20.0, "cr-billed": 20.0, "cr-given": None, "h-own": None}
    told = {row["id"]: row["no_command"] for row in found}
    assert f"account {OTHER} has it" in told["cr-billed"]
    assert told["cr-own"] == told["cr-given"] == ""


def test_what_is_going_is_not_listed(account: World) -> None:
    """It is being deleted already; nothing is left to do and its price would be wrong."""
    databases(account, {"DBInstanceStatus": "deleting"})
    snapshot = {"DBSnapshotIdentifier": "s", "Status": "deleting"}
    account.answer(
        "rds:DescribeDBSnapshots",
        xml("DescribeDBSnapshots", f"<DBSnapshots>{tag('DBSnapshot', snapshot)}</DBSnapshots>"),
    )
    notebook = {"NotebookInstanceName": "n", "NotebookInstanceStatus": "Deleting"}
    account.answer("sagemaker:ListNotebookInstances", {"NotebookInstances": [notebook]})
    account.answer(
        "sagemaker:ListEndpoints", {"Endpoints": [{"EndpointName": "e", "EndpointStatus": "Deleting"}]}
    )
    account.answer("sagemaker:ListApps", {"Apps": [{"DomainId": "d", "AppName": "a", "Status": "Deleting"}]})
    account.answer(
        "fsx:DescribeFileSystems", {"FileSystems": [{"FileSystemId": "fs-1", "Lifecycle": "DELETING"}]}
    )
    account.answer("efs:GET", {"FileSystems": [{"FileSystemId": "fs-2", "LifeCycleState": "deleting"}]})
    account.answer(
        "eks:GET",
        lambda request: (
            {"clusters": ["k"]} if request["Path"] == "/clusters" else {"cluster": {"status": "DELETING"}}
        ),
    )
    played(
        account, "DescribeVpcEndpoints", "vpcEndpointSet",
        {"vpcEndpointId": "vpce-1", "vpcEndpointType": "Interface", "state": "expired"},
    )  # fmt: skip
    kinds = "database,database-snapshot,notebook,endpoint,studio-app,fsx-file-system,file-system,eks-cluster"
    assert rows(account, f"{kinds},vpc-endpoint", code=0) == []
    assert {called.partition(":")[0] for called in account.seen} >= {
        "rds",
        "sagemaker",
        "fsx",
        "efs",
        "eks",
        "ec2",
    }


def test_an_endpoint_that_failed(account: World) -> None:
    """Whether it has machines nobody says: listed, and without a price."""
    account.answer(
        "sagemaker:ListEndpoints", {"Endpoints": [{"EndpointName": "e", "EndpointStatus": "Failed"}]}
    )
    found = listed(*HERE, "endpoint", "--price", "endpoint=3/h")
    (row,) = found["items"]
    assert "is not told" in row["why"]
    assert (row["per_hour"], found["cost"]["per_hour"]) == (None, None)


def test_volumes_that_go_with_their_machine(account: World) -> None:
    """They are no items while it runs, and billed: the sum says that they are not in it."""
    started("eu-west-1", "m5.large")
    asked = (*HERE, "instance,attached-volume", "--price", "m5.large=0.1/h")
    (row,) = listed(*asked)["items"]
    assert row["extra"] == "volumes"
    text = " ".join(leftovers(*asked, code=1).stdout.split())
    assert "not in it: volumes" in text
    # of one whose volumes stay and are items of their own, none is missing
    kept = started("eu-west-1", "m5.large", stays=True)
    assert [r["extra"] for r in listed(*HERE, "instance")["items"] if r["id"] in kept] == [""]


def test_an_address_on_an_interface_without_a_machine(account: World) -> None:
    """Billed as one that nothing uses, and it must be taken off before it can be given back."""
    account.answer("ec2:DescribeNetworkInterfaces", lambda request: None)  # as moto plays it
    subnet = ec2().describe_subnets()["Subnets"][0]["SubnetId"]
    face = ec2().create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    idle, used = (ec2().allocate_address(Domain="vpc")["AllocationId"] for _ in range(2))
    tied = ec2().associate_address(AllocationId=idle, NetworkInterfaceId=face)["AssociationId"]
    (machine,) = started("eu-west-1", "m5.large")
    ec2().associate_address(AllocationId=used, InstanceId=machine)
    (row,) = rows(account, "address")
    assert (row["id"], row["state"]) == (idle, "on an idle interface")
    assert face in row["why"]
    assert ends(row) == [
        f"disassociate-address --association-id {tied}",
        f"release-address --allocation-id {idle}",
    ]
    # not allowed to look at interfaces: said, and the address does not count as seen
    account.refuse("ec2:DescribeNetworkInterfaces", "UnauthorizedOperation", status=403)
    found = listed(*HERE, "address")
    assert [f["permission"] for f in found["failed"]] == ["ec2:DescribeNetworkInterfaces"]


def test_a_warm_pool_of_sagemaker(account: World) -> None:
    """A job that has ended keeps its machines."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request.get("StatusEquals") == "InProgress":
            return {"TrainingJobSummaries": [{"TrainingJobName": "runs", "TrainingJobStatus": "InProgress"}]}
        assert request["WarmPoolStatusEquals"] == "Available"
        pool = {"WarmPoolStatus": {"Status": "Available"}, "TrainingJobStatus": "Completed"}
        return {"TrainingJobSummaries": [{"TrainingJobName": "warm", **pool}]}

    account.answer("sagemaker:ListTrainingJobs", answer)
    found = {row["id"]: row for row in rows(account, "training-job")}
    assert sorted(found) == ["runs", "warm"]
    assert found["warm"]["state"] == "warm pool"
    assert ends(found["warm"]) == [
        "update-training-job --training-job-name warm --resource-config KeepAlivePeriodInSeconds=0"
    ]


def test_an_image_that_is_disabled(account: World) -> None:
    """Its snapshots are billed all the same; EC2 lists it only when it is asked for."""
    asked: list[str] = []

    def answer(request: dict[str, Any]) -> str:
        asked.append(request.get("IncludeDisabled", ""))
        return "<R><imagesSet><item><imageId>ami-1</imageId><imageState>disabled</imageState></item></imagesSet></R>"

    account.answer("ec2:DescribeImages", answer)
    assert [row["state"] for row in rows(account, "image")] == ["disabled"]
    assert asked == ["true"]


def test_a_group_that_wants_none_and_keeps_a_warm_pool(account: World) -> None:
    """The machines of the pool cost, stopped or running."""
    pool = {"WarmPoolConfiguration": {"MinSize": 2, "PoolState": "Running"}, "WarmPoolSize": 2}
    group = {"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 2, "DesiredCapacity": 0}
    told = "".join(
        tag("member", {**group, "AutoScalingGroupName": name, **more})
        for name, more in (("g", pool), ("none", {}))
    )
    account.answer(
        "autoscaling:DescribeAutoScalingGroups",
        xml("DescribeAutoScalingGroups", f"<AutoScalingGroups>{told}</AutoScalingGroups>"),
    )
    (row,) = rows(account, "auto-scaling-group")
    assert row["id"] == "g"
    assert "a warm pool, of 2 machines now (Running)" in row["why"]
