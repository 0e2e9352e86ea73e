"""A real HDFS on loopback for tests: one NameNode and one DataNode of Hadoop 2.7.3, run on JDK 17.

The jars come out of the `pyspark==2.4.8` source package, which pip fetches once into ``.cache/hdfs``;
nothing of Spark is installed or run.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "hdfs"
PACKAGE = "pyspark-2.4.8"
WANTED = (
    "apacheds",
    "api-",
    "commons-",
    "gson-",
    "guava-",
    "hadoop-annotations",
    "hadoop-auth",
    "hadoop-common",
    "hadoop-hdfs",
    "htrace",
    "http",
    "jackson-core-asl",
    "jackson-mapper-asl",
    "javax.servlet-api",
    "javax.ws.rs-api",
    "jersey-",
    "jetty",
    "jsp-api",
    "jsr305",
    "leveldbjni",
    "log4j",
    "netty",
    "protobuf",
    "slf4j",
    "xercesImpl",
    "xmlenc",
)
OPENS = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
)


def jars() -> Path:
    """The folder of jars, fetched and unpacked on first use."""
    folder = CACHE / "jars"
    if folder.is_dir():
        return folder
    package = CACHE / f"{PACKAGE}.tar.gz"
    CACHE.mkdir(parents=True, exist_ok=True)
    if not package.exists():
        fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        where = ["--dest", str(CACHE), PACKAGE.replace("-", "==")]
        subprocess.run([sys.executable, "-m", "pip", *fetch, *where], check=True)
    aside = CACHE / f"jars.{os.getpid()}"
    aside.mkdir()
    with tarfile.open(package) as tar:
        for member in tar:
            name = Path(member.name).name
            if member.isfile() and name.endswith(".jar") and name.startswith(WANTED):
                taken = tar.extractfile(member)
                assert taken is not None
                (aside / name).write_bytes(taken.read())
    aside.rename(folder)
    return folder


class Hdfs:
    """A running HDFS; `url` is its root."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ports = dict(zip(("name", "http", "data", "data_http", "data_ipc"), _free_ports(5), strict=True))
        self.url = f"hdfs://127.0.0.1:{self.ports['name']}"
        self.running: list[subprocess.Popen[bytes]] = []
        _configure(folder, self.ports)

    def java(self, daemon: str) -> list[str]:
        conf = self.folder / "conf"
        opens = [f"--add-opens={module}=ALL-UNNAMED" for module in OPENS]
        memory = ["-Xmx160m", "-XX:+UseSerialGC", f"-Dhadoop.log.dir={self.folder}"]
        ipv4 = ["-Djava.net.preferIPv4Stack=true"]
        main = f"org.apache.hadoop.hdfs.server.{daemon}"
        return ["java", *opens, *memory, *ipv4, "-cp", f"{conf}:{jars()}/*", main]

    def start(self) -> None:
        with (self.folder / "log").open("wb") as log:
            subprocess.run(
                [*self.java("namenode.NameNode"), "-format", "-force", "-nonInteractive"],
                stdout=log,
                stderr=log,
                check=True,
            )
            for daemon in ("namenode.NameNode", "datanode.DataNode"):
                self.running.append(subprocess.Popen(self.java(daemon), stdout=log, stderr=log))

    def wait(self, deadline_s: float = 90) -> None:
        """Return once a file could be written: the DataNode has reported and safe mode is over."""
        from hdfs_native import Client

        until = time.monotonic() + deadline_s
        while True:
            try:
                self.put_bytes("/ready", b"yes")
                assert Client(self.url).read("/ready").read() == b"yes"
                return
            except Exception:
                died = any(process.poll() is not None for process in self.running)
                if died or time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def put_bytes(self, path: str, data: bytes) -> None:
        from hdfs_native import Client, WriteOptions

        with Client(self.url).create(path, WriteOptions(overwrite=True)) as out:
            out.write(data)

    def put(self, folder: Path, path: str) -> str:
        """Copy a folder into HDFS; returns its URL."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put_bytes(f"{path}/{file.relative_to(folder)}", file.read_bytes())
        return self.url + path

    def kill(self) -> None:
        """As kill -9, both daemons."""
        for process in self.running:
            process.kill()
            process.wait()


@contextmanager
def hdfs(folder: Path) -> Iterator[Hdfs]:
    """Start an HDFS that keeps its data in `folder`; it is killed at the end."""
    running = Hdfs(folder)
    try:
        running.start()
        running.wait()
        yield running
    finally:
        running.kill()


def why_not() -> str | None:
    """Why no HDFS can run here, or None."""
    if shutil.which("java") is None:
        return "no Java to run HDFS on"
    try:
        import hdfs_native  # noqa: F401
    except ImportError:
        return "hdfs-native is not installed"
    return None


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def _configure(folder: Path, ports: dict[str, int]) -> None:
    conf = folder / "conf"
    for inner in ("webapps/hdfs", "webapps/datanode"):  # Hadoop looks for them on the classpath
        (conf / inner).mkdir(parents=True)
    _write(conf / "core-site.xml", {"fs.defaultFS": f"hdfs://127.0.0.1:{ports['name']}"})
    _write(
        conf / "hdfs-site.xml",
        {
            "dfs.replication": "1",
            "dfs.blocksize": "1048576",
            "dfs.namenode.name.dir": f"file://{folder}/name",
            "dfs.datanode.data.dir": f"file://{folder}/data",
            "dfs.namenode.http-address": f"127.0.0.1:{ports['http']}",
            "dfs.datanode.address": f"127.0.0.1:{ports['data']}",
            "dfs.datanode.http.address": f"127.0.0.1:{ports['data_http']}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ports['data_ipc']}",
            "dfs.webhdfs.enabled": "false",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
        },
    )
    (conf / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,console\n"
        "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
    )


def _write(path: Path, settings: dict[str, str]) -> None:
    rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    path.write_text(f"<configuration>{rows}</configuration>")
