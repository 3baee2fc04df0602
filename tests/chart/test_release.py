"""Install, upgrade and uninstall with both Helms on a real API server; Pod Security; strict reading."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from tests.chart import cluster
from tests.chart.helm import CHART, VALUES, Helm, HelmError, Manifest, of_kind
from tests.parts import kubernetes
from tests.parts.kubernetes import ApiServer

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

REPOSITORY = CHART.parents[1]
ENDPOINTS = f"--values={VALUES / 'server-memory.yaml'}"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server of our own: these tests take the CRD away, which others rely on."""
    if reason := kubernetes.missing():
        pytest.skip(reason)
    with kubernetes.api_server(tmp_path_factory.mktemp("chart-api")) as server:
        yield server


class Cluster:
    """A namespace to release into."""

    def __init__(self, api: ApiServer, helm: Helm, folder: pathlib.Path, namespace: str) -> None:
        self.api, self.helm, self.namespace = api, helm, namespace
        self._home = folder
        self._config = api.kubeconfig(folder / "kubeconfig")

    def run(self, *arguments: str) -> str:
        place = [f"--kubeconfig={self._config}", f"--namespace={self.namespace}"]
        return self.helm.run(*arguments, *place, home=self._home)

    def names(self, kind: str) -> list[str]:
        """Names of the objects of a kind in the namespace."""
        return self.api.kubectl("get", kind, "-n", self.namespace, "-o", "name").split()

    def policy(self, field: str) -> str:
        return self.api.kubectl("get", "slp", "default", "-o", f"jsonpath={{{field}}}")


@pytest.fixture
def release(api: ApiServer, helm: Helm, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    name = f"release-{helm.major}"
    cluster.namespace(api, name)
    made = Cluster(api, helm, tmp_path, name)
    yield made
    if "mx" in made.run("list", "--short").split():
        made.run("uninstall", "mx")
    cluster.delete_definition(api)


def test_the_life_of_a_release(release: Cluster) -> None:
    said = release.run("install", "mx", str(CHART), ENDPOINTS)
    assert "STATUS: deployed" in said
    # One command made the kind and the first policy of that kind.
    assert release.policy(".spec.server.address") == f"mx-mx-source-load-server.{release.namespace}:8001"
    assert set(release.names("deployment")) == {
        "deployment.apps/mx-mx-source-load-operator",
        "deployment.apps/mx-mx-source-load-server",
    }
    release.run("upgrade", "mx", str(CHART), ENDPOINTS, "--set=policy.spec.mode=observe")
    assert release.policy(".spec.mode") == "observe"
    own = release.policy(".metadata.uid")
    release.run("upgrade", "mx", str(CHART), ENDPOINTS, "--set=policy.spec.interval=3s")
    assert (release.policy(".spec.mode"), release.policy(".spec.interval")) == ("write", "3s")
    assert release.policy(".metadata.uid") == own, "a policy of the release is changed, not made anew"

    the_emergency_switch_outlives_an_upgrade(release)

    release.run("rollback", "mx", "1")
    release.run("uninstall", "mx")
    assert release.names("deployment") == []
    assert release.api.kubectl("get", "slp", "-o", "name") == ""


def the_emergency_switch_outlives_an_upgrade(release: Cluster) -> None:
    release.api.kubectl("patch", "slp", "default", "--type=merge", "-p", '{"spec":{"mode":"observe"}}')
    upgrade = ("upgrade", "mx", str(CHART), ENDPOINTS, "--set=policy.spec.interval=3s")
    if release.helm.major == 3:  # changes what changed in the values, and nothing else
        release.run(*upgrade)
    else:
        with pytest.raises(HelmError, match=r"conflict.*\.spec\.mode"):
            release.run(*upgrade)
    assert release.policy(".spec.mode") == "observe"
    release.run(*upgrade, "--set=policy.spec.mode=observe")
    assert release.policy(".spec.mode") == "observe"


def test_an_uninstallation_keeps_the_definition_and_the_next_one_takes_over(release: Cluster) -> None:
    release.run("install", "mx", str(CHART), ENDPOINTS)
    release.run("uninstall", "mx")
    assert "sourceloadpolicies" in release.api.kubectl("get", "crd", "-o", "name")
    said = release.run("install", "mx", str(CHART), ENDPOINTS, "--set=policy.spec.interval=7s")
    assert "STATUS: deployed" in said
    assert release.policy(".spec.interval") == "7s"


def previous_chart(folder: pathlib.Path) -> pathlib.Path:
    """The chart as it was before the last commit that changed it."""

    def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, check=False)

    last = git("log", "-1", "--format=%H", "--", "charts/mx-source-load").stdout.decode().strip()
    archive = git("archive", f"{last}~1", "charts/mx-source-load") if last else None
    if archive is None or archive.returncode:
        pytest.skip("no commit before the chart's last change in this clone")
    (folder / "previous.tar").write_bytes(archive.stdout)
    with tarfile.open(folder / "previous.tar") as packed:
        packed.extractall(folder, filter="data")
    chart = folder / "charts" / "mx-source-load"
    if not (chart / "Chart.yaml").exists():
        pytest.skip("the chart is new in its last commit")
    return chart


def test_upgrade_from_the_previous_commits_chart_and_its_definition(release: Cluster, tmp_path: pathlib.Path) -> None:
    older = previous_chart(tmp_path)
    definition = older / "crd" / "sourceloadpolicies.yaml"
    definition.write_text(definition.read_text().replace("shortNames: [slp]", "shortNames: [slp, slpold]"))
    release.run("install", "mx", str(older), ENDPOINTS)
    assert release.api.kubectl("get", "slpold", "-o", "name") != ""
    said = release.run("upgrade", "mx", str(CHART), ENDPOINTS, "--set=policy.spec.interval=4s")
    assert "STATUS: deployed" in said
    assert release.policy(".spec.interval") == "4s"
    names = "jsonpath={.spec.names.shortNames}"
    assert release.api.kubectl("get", "crd", "sourceloadpolicies.sourceload.dev", "-o", names) == '["slp"]'


def test_everything_is_taken_by_a_server_that_reads_strictly(
    api: ApiServer, helm4: Helm, shared: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    manifests = helm4.template("everything", namespace="strict")
    for name in ("strict", "mx-exporter", "inference", "grafana", "mx", "monitoring"):
        cluster.namespace(api, name)
    for path in sorted((shared / "data" / "crds").glob("*.yaml")):
        api.kubectl("apply", "--server-side", "-f", str(path))
    cluster.apply(api, manifests, ["CustomResourceDefinition"])
    file = cluster.dump(manifests, tmp_path / "everything.yaml")
    said = api.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(file))
    assert said.count("serverside-applied") == len(manifests)
    cluster.delete_definition(api)


def refusal(api: ApiServer, pod: Manifest) -> str:
    """What Pod Security has against a pod; empty where it is let in."""
    try:
        api.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


def test_pod_security_restricted_lets_operator_and_server_in(api: ApiServer, helm4: Helm) -> None:
    cluster.namespace(api, "restricted", **{"pod-security.kubernetes.io/enforce": "restricted"})
    for values in ("everything", "server-memory", "server-redis", "openshift"):
        for manifest in of_kind(helm4.template(values), "Deployment"):
            assert refusal(api, cluster.pod(manifest, "pod", "restricted")) == ""


@pytest.mark.parametrize(
    ("values", "against"),
    [
        ("minimal", {"restricted volume types"}),
        ("defaults", {"restricted volume types", "runAsNonRoot", "runAsUser=0"}),
    ],
)
def test_pod_security_has_only_this_against_the_exporter(
    api: ApiServer, helm4: Helm, values: str, against: set[str]
) -> None:
    for level in ("restricted", "baseline", "privileged"):
        cluster.namespace(api, f"pss-{level}", **{"pod-security.kubernetes.io/enforce": level})
    daemonset = of_kind(helm4.template(values), "DaemonSet")[0]

    def violations(level: str) -> set[str]:
        said = refusal(api, cluster.pod(daemonset, "pod", f"pss-{level}"))
        listed = said.partition(f'violates PodSecurity "{level}:latest": ')[2].strip()
        return {part.partition(" (")[0].removesuffix(" != true") for part in listed.split("), ") if part}

    assert violations("restricted") == against
    assert violations("baseline") == {"hostPath volumes"}
    assert refusal(api, cluster.pod(daemonset, "pod", "pss-privileged")) == ""
