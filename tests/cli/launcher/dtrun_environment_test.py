"""The environment of a rank when it starts: variables, descriptors, input, signals, and the cores of --bind."""

import errno
import json
import os
import re
import socket
import subprocess
import unittest

from dtrain_harness import free_port, need_mounts
from dtrun_harness import DTRUN, DtrunTest, main, number_of_gpus
from dtrun_nodes_harness import NodesTest
from messages import assert_names, lines_naming

DUMP = """
import json, os
print(json.dumps(dict(os.environ)))
"""

# Connects like a torch.distributed program: rank 0 binds MASTER_PORT itself, and the others connect to it.
MEET = """
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((%s, address[1]))
    server.listen()
    server.accept()[0].sendall(b"met")
else:
    for attempt in range(500):
        try:
            print(socket.create_connection(address).recv(16).decode())
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""

# Connects like dtrain: each other rank sends rank 0 one end of a socket pair through dtrun's rendezvous socket.
MEET_AT_DOOR = """
import os, socket
door = socket.socket(fileno=int(os.environ["DTRUN_STORE_FD"]))
if os.environ["RANK"] == "0":
    for _ in range(2):
        _, descriptors, _, _ = socket.recv_fds(door, 16, 1)
        socket.socket(fileno=descriptors[0]).sendall(b"met")
else:
    own, handed = socket.socketpair()
    socket.send_fds(door, [b"x"], [handed.fileno()])
    handed.close()
    print(own.recv(16).decode())
"""

# The same with several nodes: rank 0 accepts connections at a socket on which dtrun listens before any rank starts.
MEET_AT_LISTENER = """
import os, socket
if os.environ["RANK"] == "0":
    listener = socket.socket(fileno=int(os.environ["DTRUN_STORE_LISTENER_FD"]))
    listener.setblocking(True)
    listener.accept()[0].sendall(b"met")
else:
    assert "DTRUN_STORE_LISTENER_FD" not in os.environ
    print(socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["DTRUN_STORE_PORT"]))).recv(16).decode())
"""


class PythonTest(DtrunTest):
    def python(self, text, *options, ranks=2, **more):
        (self.folder / "program.py").write_text(text)
        process = self.dtrun("-n", str(ranks), *options, "--", "python3", "program.py", **more, status=0)
        return process

    def variables(self, *options, ranks=2, **more):
        lines = sorted(self.python(DUMP, *options, ranks=ranks, **more).out.splitlines())
        return [json.loads(line[line.index("{"):]) for line in lines]


class EnvironmentTest(PythonTest):
    def test_every_rank_finds_what_torchrun_would_set(self):
        for rank, found in enumerate(self.variables(ranks=3)):
            expected = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3,
                        "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": 3, "TORCHELASTIC_RESTART_COUNT": 0,
                        "MASTER_ADDR": "127.0.0.1"}
            self.assertEqual({k: str(v) for k, v in expected.items()},
                             {k: found.get(k) for k in expected})
            self.assertGreater(int(found["MASTER_PORT"]), 1023)
            self.assertTrue(found["TORCHELASTIC_RUN_ID"])
            self.assertEqual(found["DTRUN_MASTER"], f"127.0.0.1:{found['MASTER_PORT']}")
            self.assertIn("DTRUN_STORE_FD", found)
            self.assertIn("DTRUN_CONTROL_FD", found)

    def test_torchruns_variables_are_defaults_of_the_options(self):
        for options, ranks in (((), 3), (("-n", "2"), 2)):
            found = self.dtrun(*options, "--", "sh", "-c", "echo $WORLD_SIZE", env={"PET_NPROC_PER_NODE": "3", "PET_NNODES": "1"})
            self.assertEqual((found.returncode, sorted(found.out.splitlines())), (0, [f"[{rank}] {ranks}" for rank in range(ranks)]))
        wrong = self.dtrun("--", "true", env={"PET_NNODES": "x"}, status=2)
        self.assertIn("PET_NNODES: found 'x'", wrong.err)
        self.assertIn("--nnodes 2 needs --node-rank", self.dtrun("--", "true", env={"PET_NNODES": "2"}).err)
        self.assertEqual(self.dtrun("--standalone", "--", "true", env={"PET_NNODES": "2"}).returncode, 0)
        for value, name in (("1", "--standalone"), ("0", "--node-rank"), ("false", "--node-rank")):
            self.assertIn(name, self.refused(2, "--nnodes", "2", "--", "true", env={"PET_STANDALONE": value}))

    def test_options_of_torchrun_that_change_nothing_are_accepted(self):
        options = ("--rdzv-backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv-id", "7", "--monitor-interval", "5", "--role", "trainer",
                   "--local-addr", "127.0.0.1")
        process = self.dtrun(*options, "--", "sh", "-c", "echo $MASTER_ADDR")
        self.assertEqual((process.returncode, process.out, process.err), (0, "127.0.0.1\n", ""))

    def test_replacing_world_size_is_reported(self):
        for value, is_told in (("4", True), ("1", False), ("", False)):
            process = self.dtrun("--", "true", env={"WORLD_SIZE": value})
            self.assertEqual(bool(lines_naming(process.err, "warning", "WORLD_SIZE=4", "1 rank")), is_told)
            self.assertEqual(process.returncode, 0)

    def test_ranks_agree_on_the_job(self):
        found = self.variables(ranks=3)
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID"):
            self.assertEqual(1, len({v[name] for v in found}))

    def test_each_rank_has_an_error_file_beside_its_logs(self):
        self.python('import os; open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write("{}")', "--log-dir", "logs")
        self.assertEqual(2, len(list((self.folder / "logs").glob("*/attempt_0/*/error.json"))))

    def test_without_logs_ranks_do_not_inherit_an_outer_launchers_error_file(self):
        (found,) = self.variables(ranks=1, env={"TORCHELASTIC_ERROR_FILE": "outer.json"})
        self.assertNotIn("TORCHELASTIC_ERROR_FILE", found)

    def test_threads_share_the_usable_cores_and_the_users_value_wins(self):
        cores = len(os.sched_getaffinity(0))
        for ranks in (1, 2, cores + 1):
            self.assertEqual(str(max(1, cores // ranks)),
                             self.variables(ranks=ranks)[0]["OMP_NUM_THREADS"])
        self.assertEqual("5", self.variables(env={"OMP_NUM_THREADS": "5"})[1]["OMP_NUM_THREADS"])

    def test_threads_follow_the_affinity_mask_not_the_machine(self):
        one = {min(os.sched_getaffinity(0))}
        process = self.dtrun("-n", "cpu", "--", "sh", "-c", "echo $WORLD_SIZE $OMP_NUM_THREADS",
                             preexec_fn=lambda: os.sched_setaffinity(0, one))
        self.assertEqual("1 1\n", process.out)

    def test_auto_starts_one_rank_per_gpu_or_else_per_core(self):
        process = self.dtrun("--nproc_per_node=auto", "--standalone", "--nnodes=1", "sh", "-c",
                             "echo $WORLD_SIZE")
        self.assertEqual(number_of_gpus() or len(os.sched_getaffinity(0)), len(process.out.splitlines()))

    @unittest.skipIf(os.geteuid() != 0, "needs root: to mount another /dev")
    @unittest.skipIf(number_of_gpus(), "needs a machine without GPUs")
    def test_only_gpus_visible_to_cuda_count(self):
        need_mounts(self)
        script = 'mount -t tmpfs none /dev && touch /dev/null /dev/nvidia0 /dev/nvidia1 /dev/nvidia2 /dev/nvidiactl && exec "$@"'
        for shown, count in (("0,2", 2), ("1", 1), (None, 3)):
            command = ["unshare", "--mount", "sh", "-c", script, "sh", DTRUN, "-n", "gpu", "--", "sh", "-c", "echo"]
            environment = {"CUDA_VISIBLE_DEVICES": shown} if shown else {}
            out = subprocess.run(command, env=self.environment(**environment), capture_output=True, text=True, check=True).stdout
            self.assertEqual(count, len(out.splitlines()))

    def test_the_number_of_ranks_has_mpiruns_names_too(self):
        for words in (("-np", "2"), ("-np=2",), ("--np", "2")):
            self.assertEqual("2\n2\n", self.dtrun(*words, "--", "sh", "-c", "echo $WORLD_SIZE").out.replace("[0] ", "").replace(
                "[1] ", ""), words)

    def test_the_rest_of_the_environment_and_the_arguments_pass_unchanged(self):
        text = 'import os, sys\nprint(sys.argv[1:], os.environ["OTHER"], os.getcwd())\n'
        (self.folder / "program.py").write_text(text)
        process = self.dtrun("-n1", "--", "python3", "program.py", "--", "-n", "a b", "",
                             env={"OTHER": "x=y z", "RANK": "7"})
        self.assertEqual(f"['--', '-n', 'a b', ''] x=y z {self.folder}\n", process.out)

    def test_a_program_beside_dtrun_is_found_when_the_path_has_none(self):
        process = self.dtrun("-n", "2", "--", "dtrun", "--version", env={"PATH": "/nowhere"}, status=0)
        self.assertEqual(2, process.out.count("dtrun "))

    def test_a_nested_dtrun_does_not_inherit_the_outer_descriptors(self):
        look = "echo $DTRUN_CONTROL_FD $DTRUN_STORE_FD $(readlink /proc/self/fd/$DTRUN_STORE_FD)"
        process = self.dtrun("-n", "1", "--", "sh", "-c", f"{look}; exec {DTRUN} -n 2 -- sh -c '{look}'")
        outer, *inner = sorted(process.out.splitlines(), key=lambda line: line.startswith("["))
        self.assertEqual(3, len({line.split()[-1] for line in [outer, *inner]}), process.out)


class InheritanceTest(DtrunTest):
    def test_rank_0_reads_dtruns_input_and_the_others_none(self):
        with open(self.folder / "input", "w+") as file:
            file.write("for rank 0\n")
            file.seek(0)
            process = self.dtrun(*self.shell("echo \"<$(cat)>\""), stdin=file)
        self.assertEqual(["[0] <for rank 0>", "[1] <>"], sorted(process.out.splitlines()))

    def test_a_rank_has_no_descriptors_but_its_own(self):
        process = self.dtrun(*self.shell("ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> "
                                         "\\(socket\\|pipe\\|anon\\|[^:]*eventpoll\\).*/\\1 \\2/p'"))
        kinds = {rank: sorted(line.split()[2] for line in process.out.splitlines()
                              if line.startswith(f"[{rank}]")) for rank in "01"}
        # Standard output and error (and the pipe to sed), the control descriptor, the rendezvous socket.
        self.assertEqual(2, kinds["1"].count("socket"), process.out)
        self.assertEqual(2, kinds["0"].count("socket"), process.out)
        self.assertEqual(2, kinds["0"].count("pipe"), process.out)
        self.assertEqual(2, kinds["1"].count("pipe"), process.out)

    def test_signals_are_as_dtrun_found_them(self):
        # Without a shell, which would unblock signals itself.
        look = ("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
        alone = subprocess.run(look, capture_output=True, text=True).stdout
        process = self.dtrun("-n", "1", "--", *look)
        self.assertEqual(alone, process.out)


class PortTest(PythonTest):
    def test_a_program_may_bind_the_port_itself(self):
        for address in ("address[0]", "'0.0.0.0'"):
            self.assertEqual("[1] met\n", self.python(MEET % address).out)

    def test_ranks_can_rendezvous_at_dtruns_socket_without_an_address(self):
        self.assertEqual(["[1] met", "[2] met"], sorted(self.python(MEET_AT_DOOR, ranks=3).out.splitlines()))

    def test_the_port_stays_taken_as_long_as_the_job_runs(self):
        text = """
import os, socket
with socket.socket() as other:  # without SO_REUSEADDR, like a foreign program
    try:
        other.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    except OSError as error:
        print(error.strerror)
"""
        self.assertEqual(2, self.python(text).out.count(os.strerror(errno.EADDRINUSE)))

    def test_a_port_that_was_asked_for_is_used(self):
        port = str(free_port())
        found = self.variables("--master_port", port, "--master-addr=localhost")
        self.assertEqual([port, port], [v["MASTER_PORT"] for v in found])
        self.assertEqual("localhost", found[0]["MASTER_ADDR"])

    def test_a_port_that_is_taken_gives_11_and_is_named(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = str(holder.getsockname()[1])
            process = self.dtrun("-n", "2", "--master-port", port, "--", "/bin/true")
        self.assertEqual(11, process.returncode)
        self.assertEqual(1, len(process.err.splitlines()))
        self.assertIn("port " + port, process.err)

    def test_after_the_death_of_rank_0_nothing_listens(self):
        text = """
import os, signal, socket, time
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    open("listening", "w").close()
    kept = server.accept()
    os._exit(0)
while not os.path.exists("listening"):
    time.sleep(0.01)
socket.create_connection(("127.0.0.1", port)).recv(1)  # returns as rank 0 ends
answer = "accepted"
end = time.monotonic() + 2
while answer == "accepted" and time.monotonic() < end:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.01)
    except OSError as error:
        answer = type(error).__name__
print(answer)
"""
        self.assertEqual("[1] ConnectionRefusedError\n", self.python(text).out)


class Nodes(NodesTest):
    def test_programs_rendezvous_at_master_port_and_dtrain_ranks_at_dtruns_socket(self):
        for text in (MEET % "address[0]", MEET % "'0.0.0.0'", MEET_AT_LISTENER):
            (self.folder / "program.py").write_text(text)
            process = self.dtrun("--emulate-nodes", "2", "-n", "1", "--", "python3", "program.py")
            self.assertEqual((process.returncode, process.out), (0, "[node1:1] met\n"), process.err)

    def test_torchruns_variables_and_endpoint_name_the_nodes(self):
        port = str(self.port)
        for rank_of in (lambda rank: ((), {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "127.0.0.1",
                                           "PET_MASTER_PORT": port}),
                        lambda rank: (("--nnodes", "2", "--node-rank", str(rank), "--rdzv-backend", "static",
                                       "--rdzv-endpoint", f"127.0.0.1:{port}"), {})):
            launchers = []
            for rank in range(2):
                options, variables = rank_of(rank)
                launchers.append(self.start(*options, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE", env=variables))
            self.assertEqual(self.ends(*launchers), [0, 0])
            for rank, launcher in enumerate(launchers):
                self.assertTrue(launcher.out.endswith(f"{rank} of 2\n"), launcher.out)


USAGE = 2
SHOW = 'echo $(sed -n "s/Cpus_allowed_list:\\t//p" /proc/self/status) $OMP_NUM_THREADS'


def cpus_of(text):
    return {cpu for part in text.split(",") for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}


class Binding(DtrunTest):
    def shown(self, ranks, *options, **more):
        """(CPUs, threads) by rank, and dtrun's own lines."""
        result = self.dtrun("-n", str(ranks), *options, "--", "sh", "-c", SHOW, **more)
        found = {}
        for line in result.out.splitlines():
            rank, cpus, threads = re.match(r"(?:\[(\d+)\] )?(\S+) (\d+)$", line).groups()
            found[int(rank or 0)] = (cpus_of(cpus), int(threads))
        return [found[rank] for rank in sorted(found)], result.err

    def test_ranks_are_not_pinned_by_default(self):
        ranks, error = self.shown(2)
        self.assertEqual([cpus for cpus, _ in ranks], [os.sched_getaffinity(0)] * 2)
        self.assertEqual(error, "")

    def test_each_rank_is_pinned_to_its_cores_within_dtruns_mask(self):
        if self.cores() < 2:
            self.skipTest("needs two cores")
        ranks, error = self.shown(2, "--bind", "cores")
        self.assertRegex(error, r"\Adtrun: .*cores.*\n\Z")
        self.assertEqual([cpus_of(text) for text in re.findall(r"\d+ to CPUs ([\d,-]+)", error)], [cpus for cpus, _ in ranks])
        self.assertFalse(ranks[0][0] & ranks[1][0], ranks)
        for cpus, threads in ranks:
            self.assertLessEqual(cpus, os.sched_getaffinity(0))
            self.assertLessEqual(threads, len(cpus))
        self.assertEqual(ranks[0][1], ranks[1][1])

    def cores(self):
        lists = set()
        for cpu in os.sched_getaffinity(0):
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                lists.add(file.read())
        return len(lists)

    def test_pinning_respects_a_smaller_mask_of_dtrun(self):
        one = min(os.sched_getaffinity(0))
        ranks, error = self.shown(1, "--bind", "cores", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(ranks, [({one}, 1)])
        self.assertRegex(error, rf"\Adtrun: .*cores: 0 to CPUs {one}\n\Z")
        ranks, error = self.shown(1, "--bind=numa", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(ranks, [({one}, 1)])
        self.assertRegex(error, rf"\Adtrun: .*NUMA.*: 0 to CPUs {one}\n\Z")

    def test_emulated_nodes_divide_the_machine(self):
        if self.cores() < 2:
            self.skipTest("needs two cores")
        result = self.dtrun("--emulate-nodes", "2", "-n", "1", "--bind", "cores", "--", "sh", "-c", SHOW)
        shown = [cpus_of(line.split()[1]) for line in result.out.splitlines()]
        self.assertEqual(len(shown), 2, result.out)
        self.assertFalse(shown[0] & shown[1], result.out)

    def test_more_ranks_than_cores_are_refused(self):
        result = self.dtrun("-n", "4000", "--bind", "cores", "--", "true", status=USAGE)
        assert_names(result.err, "dtrun: error", "--bind cores", "4000 ranks")
        result = self.dtrun("-n", "1", "--bind", "sockets", "--", "true")
        assert_names(result.err, "--bind", "'sockets'", "none", "cores", "numa")


if __name__ == "__main__":
    main()
