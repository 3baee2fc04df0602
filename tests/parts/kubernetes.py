"""A real Kubernetes API server: etcd and kube-apiserver, RBAC and the audit log on.

There is no scheduler, kubelet or controller behind it: pods are written with their status by the test, a namespace
stays Terminating, owner references collect nothing, and service accounts must be created.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from mx_lab.processes import Process, free_port
from tests.parts.tools import cache, tool

ADMIN_TOKEN = "admin-token-of-a-test"
_POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}


def missing() -> str | None:
    """Why this part cannot be had here; None when it can."""
    absent = [name for name in ("etcd", "kube-apiserver") if tool(name) is None]
    if absent:
        return f"no {' and '.join(absent)}: run scripts/tools"
    return None if _kubectl() else "no kubectl on PATH: run scripts/helm, which brings one"


def _kubectl() -> str | None:
    """The one on PATH, or the one beside Helm."""
    return shutil.which("kubectl") or shutil.which("kubectl", path=str(cache() / "helm" / "4"))


@dataclasses.dataclass
class ApiServer:
    """A running API server, with an administrator's way in."""

    folder: pathlib.Path
    port: int
    etcd_port: int
    etcd_peer_port: int
    etcd: Process | None = None
    server: Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> pathlib.Path:
        """The server's own certificate, which is its own issuer."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def audit_log(self) -> pathlib.Path:
        return self.folder / "audit.log"

    def audit(self, user: str | None = None) -> list[dict[str, Any]]:
        """The audited requests so far, of `user` only where given (`system:serviceaccount:NAMESPACE:NAME`)."""
        events = [json.loads(line) for line in self.audit_log.read_text().splitlines() if line.endswith("}")]
        # A refused token has no name.
        return [event for event in events if user is None or event["user"].get("username") == user]

    def request(
        self, method: str, path: str, body: Any = None, *, token: str = ADMIN_TOKEN, content: str = "application/json"
    ) -> Any:
        """One request; the parsed answer.

        Raises:
            urllib.error.HTTPError: The server answered with an error; its body says which.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content, "Accept": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=self._tls()) as answer:
            return json.load(answer)

    def apply(self, manifests: str | Sequence[Mapping[str, Any]]) -> str:
        """Server-side apply through kubectl; what kubectl printed.

        Raises:
            subprocess.CalledProcessError: kubectl failed; `stderr` says why.
        """
        documents = manifests if isinstance(manifests, str) else yaml.safe_dump_all(manifests)
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=documents)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; its standard output.

        Raises:
            subprocess.CalledProcessError: kubectl failed; `stderr` says why, and so does a note of the error.
        """
        command = [
            _kubectl() or "kubectl",
            f"--server={self.url}",
            f"--token={ADMIN_TOKEN}",
            f"--certificate-authority={self.ca_file}",
        ]
        done = subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        try:
            done.check_returncode()
        except subprocess.CalledProcessError as error:
            error.add_note(done.stderr)
            raise
        return done.stdout

    def kubeconfig(self, path: pathlib.Path, token: str = ADMIN_TOKEN, namespace: str = "default") -> pathlib.Path:
        """Write a kubeconfig to `path`: the administrator's, or that of whoever has the token."""
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": context}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def service_account(self, namespace: str, name: str, audience: str | None = None) -> str:
        """Create the namespace and the account where missing; a token of the account."""
        for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": namespace}}),
            (f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}}),
        ):
            with contextlib.suppress(urllib.error.HTTPError):
                self.request("POST", path, body)
        spec: dict[str, Any] = {"expirationSeconds": 3600} | ({"audiences": [audience]} if audience else {})
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.request("POST", path, {"spec": spec})["status"]["token"])

    def compact(self) -> None:
        """Compact etcd's history, so that a watch from an older revision is answered with 410.

        The server is restarted: the watch cache of a running one would still know what etcd has forgotten.
        """
        base = f"http://127.0.0.1:{self.etcd_port}/v3"
        key = {"key": "AA=="}
        revision = _post(f"{base}/kv/range", key)["header"]["revision"]
        _post(f"{base}/kv/compaction", {"revision": revision, "physical": True})
        self.stop_server()
        self.start_server()

    def start_server(self) -> None:
        """Start kube-apiserver (etcd must run) and wait until it is ready."""
        self.server = Process("kube-apiserver", self._command(), self.folder / "apiserver.log")
        self.server.wait_ready(self.ready, 60)

    def stop_server(self) -> None:
        """End kube-apiserver as a crash would; etcd keeps everything."""
        assert self.server is not None
        self.server.kill()

    def ready(self) -> bool:
        try:
            request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
            with urllib.request.urlopen(request, timeout=2, context=self._tls()) as answer:
                return bool(answer.status == 200)
        except (OSError, ssl.SSLError):
            return False

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def _command(self) -> list[str]:
        certs = self.folder
        return [
            str(tool("kube-apiserver")),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={certs / 'certs'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={certs / 'sa.pub'}",
            f"--service-account-signing-key-file={certs / 'sa.key'}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={certs / 'tokens.csv'}",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={certs / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--v=1",
        ]


def _post(url: str, body: Any) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10) as answer:
        return json.load(answer)


def _start_etcd(api: ApiServer) -> Process:
    client, peer = f"http://127.0.0.1:{api.etcd_port}", f"http://127.0.0.1:{api.etcd_peer_port}"
    command = [
        str(tool("etcd")),
        f"--data-dir={api.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    return Process("etcd", command, api.folder / "etcd.log")


def _write_files(folder: pathlib.Path) -> None:
    key, public = folder / "sa.key", folder / "sa.pub"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
    (folder / "audit-policy.yaml").write_text(yaml.safe_dump({**_POLICY, "rules": [{"level": "Metadata"}]}))


@contextlib.contextmanager
def api_server(folder: pathlib.Path) -> Iterator[ApiServer]:
    """Run etcd and kube-apiserver in `folder`; ready after about 3 s, 300 MB."""
    reason = missing()
    assert reason is None, reason
    assert shutil.which("openssl"), "no openssl on PATH"
    folder.mkdir(parents=True, exist_ok=True)
    _write_files(folder)
    api = ApiServer(folder, free_port(), free_port(), free_port())
    api.etcd = _start_etcd(api)
    try:
        api.start_server()
        yield api
    finally:
        if api.server is not None:
            api.server.kill()
        api.etcd.kill()
