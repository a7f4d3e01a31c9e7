"""The calls that the checks of preflight make: an account is opened for these and no others."""

from __future__ import annotations

from typing import Final

#: "service:Operation"; `loadsheet preflight --aws-policy` prints what allows exactly these
PREFLIGHT: Final = frozenset(
    {
        "budgets:DescribeBudgets",
        "budgets:DescribeNotificationsForBudget",
        "budgets:DescribeSubscribersForNotification",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstances",
        "ec2:DescribeRegions",
        "ec2:DescribeRouteTables",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVolumes",
        "ec2:DescribeVpcEndpoints",
        "ec2:DescribeVpcs",
        "iam:GenerateCredentialReport",
        "iam:GetAccountSummary",
        "iam:GetCredentialReport",
        "iam:GetRole",
        "iam:ListAttachedGroupPolicies",
        "iam:ListAttachedRolePolicies",
        "iam:ListAttachedUserPolicies",
        "iam:ListEntitiesForPolicy",
        "iam:ListGroupsForUser",
        "iam:SimulatePrincipalPolicy",
        "organizations:DescribeOrganization",
        "s3:GetBucketLocation",
        "service-quotas:GetAWSDefaultServiceQuota",
        "service-quotas:GetServiceQuota",
        "service-quotas:ListRequestedServiceQuotaChangeHistoryByQuota",
        "service-quotas:ListServiceQuotas",
        "sts:GetCallerIdentity",
    }
)
