"""What a server does to its own process: directory, log, limits, daemon, certificates."""

from __future__ import annotations

import errno
import logging
import logging.handlers
import os
import resource
import socket
import ssl
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from penstock.broker.config import Config, ConfigRefused
from penstock.broker.core.membership import BUS_PORT_OFFSET, PORT_MAX
from penstock.errors import ConfigError, OperatorError

log = logging.getLogger("penstock")

LOG_LEVELS = {
    "debug": logging.DEBUG,
    "verbose": logging.DEBUG,
    "notice": logging.INFO,
    "warning": logging.WARNING,
}
LOG_FORMAT = "%(process)d %(asctime)s %(levelname)s %(message)s"
# Descriptors beside those of clients: journal, log and listeners, and the links of a bus of 40 nodes (bus_sockets: two
# from each, one to each, and some to spare). Where the system allows few, a quarter of them.
RESERVED_FILES = 32 + 256
_waits = -1  # where whoever started a daemon hears that it is ready
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SYSLOG_SOCKET = "/dev/log"
NOT_OURS = " Give bind addresses of this machine."
LISTEN_HINTS = {errno.EADDRINUSE: " Is another node running there?", errno.EADDRNOTAVAIL: NOT_OURS}


def check(config: Config) -> None:
    """Refuse a configuration that can't work, before anything is touched."""
    if config.port > PORT_MAX:
        raise ConfigError(
            f"port {config.port} leaves no room for the cluster bus at port + {BUS_PORT_OFFSET}: "
            f"use one up to {PORT_MAX}"
        )
    if not config.port and config.tls_port > PORT_MAX:
        raise ConfigError(
            f"tls-port {config.tls_port} leaves no room for the cluster bus at tls-port + {BUS_PORT_OFFSET}: "
            f"use one up to {PORT_MAX}, or a port as well"
        )
    if config.tls_port and not (config.tls_cert_file and config.tls_key_file):
        raise ConfigError("tls-port needs tls-cert-file and tls-key-file")
    if config.tls_auth_clients == "yes" and not config.tls_ca_cert_file:
        raise ConfigError("tls-auth-clients yes needs tls-ca-cert-file: the authorities whose certificates are trusted")
    if config.tls_cluster and not (config.tls_cert_file and config.tls_key_file and config.tls_ca_cert_file):
        raise ConfigError("tls-cluster needs tls-cert-file, tls-key-file and tls-ca-cert-file")


def prepare(config: Config) -> None:
    """Go where the configuration says, become a daemon if it says so, and open the log."""
    for name in ("tls_cert_file", "tls_key_file", "tls_ca_cert_file", "pidfile", "logfile"):
        value = getattr(config, name)
        if value:
            setattr(config, name, str(Path(value).absolute()))
    try:
        os.chdir(config.dir)
    except OSError as problem:
        raise ConfigError(f"can't use dir {config.dir}: {problem.strerror}") from None
    os.umask(config.umask)
    _open_log(config)
    if config.daemonize:
        _daemonize(config)
    try:
        allow_clients(config.maxclients)
    except ConfigRefused:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        config.maxclients = max(1, soft - _reserved(soft))
        log.warning("maxclients is lowered to %d: the system allows no more open files", config.maxclients)


def _daemonize(config: Config) -> None:
    """Go on in the background. Whoever started us waits until `ready` says so, and hears if that never comes."""
    global _waits
    heard, _waits = os.pipe()
    if os.fork():
        os.close(_waits)
        if os.read(heard, 1):
            os._exit(0)
        where = f": see {config.logfile}" if config.logfile else ""
        sys.stderr.write(f"penstock server: the node did not start{where}\n")
        sys.stderr.flush()
        os._exit(1)
    os.close(heard)
    os.setsid()
    if os.fork():
        os._exit(0)


def write_pidfile(config: Config) -> None:
    """Write the pid file, once the daemon has its directory and ports."""
    if config.daemonize:
        try:
            Path(config.pidfile).write_text(f"{os.getpid()}\n")
        except OSError as problem:
            raise ConfigError(f"can't write the pidfile {config.pidfile}: {problem.strerror}. Set pidfile") from None


def ready(config: Config) -> None:
    """Report to the starting process that the daemon runs, and detach from the terminal."""
    if not config.daemonize:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.write(_waits, b"+")
    os.close(_waits)


def _open_log(config: Config) -> None:
    try:
        handler: logging.Handler = (
            logging.FileHandler(config.logfile) if config.logfile else logging.StreamHandler(sys.stdout)
        )
    except OSError as problem:
        raise ConfigError(f"can't open logfile {config.logfile}: {problem.strerror}") from None
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    log.handlers = [handler]
    log.setLevel(LOG_LEVELS[config.loglevel])
    log.propagate = False
    if config.syslog_enabled:
        _check_syslog()
        system = logging.handlers.SysLogHandler(SYSLOG_SOCKET, facility=config.syslog_facility)
        system.ident = f"{config.syslog_ident}: "
        log.addHandler(system)
    for handler in log.handlers:
        handler.handleError = _line_lost  # type: ignore[method-assign]  # a class for each kind says no more


def _check_syslog() -> None:
    """Refuse to start without syslog: its handler would fail at each line."""
    problem = OSError()
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(SYSLOG_SOCKET)
            except OSError as error:
                problem = error
            else:
                return
    raise ConfigError(
        f"syslog-enabled is yes, but {SYSLOG_SOCKET} can't be used: {problem.strerror}. Start a syslog daemon, or "
        "leave syslog-enabled out"
    )


def _line_lost(record: logging.LogRecord) -> None:
    """Say once that the log can't be written; the node goes on without it."""
    if logging.raiseExceptions:
        logging.raiseExceptions = False
        with suppress(OSError):
            sys.stderr.write(f"penstock server: can't write the log: {sys.exc_info()[1]}\n")


def change_directory(path: str) -> None:
    """CONFIG SET dir."""
    try:
        os.chdir(path)
    except OSError as problem:
        raise ConfigRefused(f"Changing directory: {problem.strerror}") from None


def allow_clients(clients: int) -> None:
    """Raise the limit on open files for this number of clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = clients + _reserved(hard)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, OSError):
        if hard > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if hard < wanted:
            most = max(1, hard - _reserved(hard))
            raise ConfigRefused(
                f"The operating system is not able to handle the specified number of clients, try with {most}"
            ) from None


def _reserved(files: int) -> int:
    return RESERVED_FILES if files < 0 else min(RESERVED_FILES, files // 4)  # below 0: no limit


def tls_context(config: Config) -> ssl.SSLContext:
    """Make the TLS side of the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # A client may close its half and still want its replies. OpenSSL would send an alert behind them, and with that a
    # client on asyncio loses what came just before it. Requests tell their own length, so that none can be cut unseen.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # OpenSSL before 3 sends none
    _load_tls_files(context, config)
    modes = {"yes": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "no": ssl.CERT_NONE}
    context.verify_mode = modes[config.tls_auth_clients] if config.tls_ca_cert_file else ssl.CERT_NONE
    return context


def bus_tls(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Make the two sides of TLS between nodes, for links to us and links of ours; None if they speak plainly."""
    if not config.tls_cluster:
        return None
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in contexts:
        context.check_hostname = False  # nodes are known by their authority: their addresses may change
        context.verify_mode = ssl.CERT_REQUIRED
        _load_tls_files(context, config)
    return contexts


def _load_tls_files(context: ssl.SSLContext, config: Config) -> None:
    cert, key, ca = config.tls_cert_file, config.tls_key_file, config.tls_ca_cert_file
    what = f"tls-cert-file {cert} with tls-key-file {key}"
    try:
        context.load_cert_chain(cert, key)
        if ca:
            what = f"tls-ca-cert-file {ca}"
            context.load_verify_locations(ca)
    except OSError as problem:  # those of TLS are among them
        raise ConfigError(f"can't use {what}: {problem}") from None


def warn_of_open_bus(config: Config, sockets: list[socket.socket]) -> None:
    """Warn if anybody on the network can join the cluster."""
    hosts = [sock.getsockname()[0] for sock in sockets]
    if config.cluster_secret or config.tls_cluster or all(ip_address(host).is_loopback for host in hosts):
        return
    log.warning(
        "the cluster bus on port %d is open to everyone who can reach %s: set cluster-secret or tls-cluster on all "
        "nodes, or bind to loopback, or let a firewall keep others from that port",
        sockets[0].getsockname()[1],
        ", ".join(hosts),
    )


def resident_bytes() -> int:
    """Return the resident memory of the process, in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def replace_file(path: str, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new one."""
    temporary = Path(f"{path}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def journal_bytes(config: Config) -> int:
    """Return the size of the journal; refuse a controlled restart without one."""
    path = Path(config.appendfilename)
    if path.exists():
        return path.stat().st_size
    if not config.appendonly:
        raise ConfigError(f"aof-enqueue-jobs-once needs a journal to load, and there is no {path.absolute()}")
    return 0


def remove_socket(path: str) -> None:
    """Remove the unix socket that an earlier node left."""
    if Path(path).is_socket():
        Path(path).unlink()


def set_permissions(path: str, permissions: int) -> None:
    """Set the mode of a unix socket; 0 leaves it to the umask."""
    if permissions:
        Path(path).chmod(permissions)


def clean_up(config: Config) -> None:
    """Leave no socket and no pid file behind."""
    if config.unixsocket:
        remove_socket(config.unixsocket)
    pidfile = Path(config.pidfile)
    if config.daemonize and pidfile.is_file() and pidfile.read_text().strip() == str(os.getpid()):
        pidfile.unlink(missing_ok=True)


def listening_sockets(config: Config, port: int) -> list[socket.socket]:
    """Open the addresses of `bind`, or all there are."""
    sockets: list[socket.socket] = []
    for host in config.bind or ("0.0.0.0", "::"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port))
            sock.listen(config.tcp_backlog)
        except OSError as problem:
            if not config.bind and family == socket.AF_INET6 and sockets:
                continue  # a machine without IPv6
            hint = NOT_OURS if isinstance(problem, socket.gaierror) else LISTEN_HINTS.get(problem.errno or 0, "")
            raise OperatorError(f"can't listen on {host} port {port}: {problem.strerror}.{hint}") from None
        sockets.append(sock)
    return sockets


def listening_unix_socket(config: Config) -> socket.socket:
    """Open the unix socket, in the place of one that an earlier node left."""
    remove_socket(config.unixsocket)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(config.unixsocket)
    except OSError as problem:
        raise OperatorError(f"can't listen on the unix socket {config.unixsocket}: {problem.strerror}") from None
    set_permissions(config.unixsocket, config.unixsocketperm)
    sock.listen(config.tcp_backlog)
    return sock
