#include "launcher/nodes/emulation.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/net/socket.h"
#include "launcher/local/port.h"
#include "launcher/local/processes.h"
#include "launcher/output/output_writer.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;

constexpr std::array kPassedToNodes = {SIGINT,  SIGTERM, SIGHUP,   SIGQUIT,
                                       SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP};
constexpr std::chrono::milliseconds kNodesKillLimit{1000};

using RunNode = std::function<int(Options, EmulatedStart)>;

// Limit, after a node has exited early, for the others to complete the rendezvous or to exit by
// themselves.
constexpr timespec kRendezvousEndLimit{.tv_sec = 1, .tv_nsec = 0};

struct Node {
  pid_t pid = -1;
  bool ended = false;
  int status = 0;
};

pid_t start_node(const Options& options, int node, EmulatedStart& start, const sigset_t& mask,
                 const RunNode& run_node) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setpgid(0, 0);             // so that only the parent forwards a Ctrl-C
  ::signal(SIGTTOU, SIG_IGN);  // it writes to the terminal from the background
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  Options own = options;
  own.node_rank = node;
  if (node > 0) start.listener.reset();
  ::_exit(run_node(std::move(own), std::move(start)));
}

void reap(std::vector<Node>& nodes) {
  int status = 0;
  for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
       pid = ::waitpid(-1, &status, WNOHANG)) {
    const auto node = std::ranges::find(nodes, pid, &Node::pid);
    if (node == nodes.end()) continue;  // left behind by a node's launcher that was killed
    node->ended = true;
    node->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

void signal_all(const std::vector<Node>& nodes, int signal) {
  for (const Node& node : nodes) {
    if (!node.ended) ::kill(node.pid, signal);
  }
}

/// Returns whether a node still holds its end of the pipe.
bool is_rendezvous_pending(const Descriptor& rendezvous) {
  pollfd end{.fd = rendezvous.get(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) == 0;
}

/// Returns the job's status.
int wait_for_all(std::vector<Node>& nodes, const Descriptor& rendezvous, const sigset_t& watched) {
  std::optional<int> early;  // status of a node that ended before the rendezvous completed
  while (true) {
    reap(nodes);
    if (std::ranges::all_of(nodes, &Node::ended)) return early.value_or(nodes.front().status);
    const auto ended = std::ranges::find_if(nodes, &Node::ended);
    const bool is_in_vain = !early && ended != nodes.end() && is_rendezvous_pending(rendezvous);
    const int signal = is_in_vain ? ::sigtimedwait(&watched, nullptr, &kRendezvousEndLimit)
                                  : ::sigwaitinfo(&watched, nullptr);
    if (signal > 0 && signal != SIGCHLD) signal_all(nodes, signal);
    if (signal == SIGTSTP) {
      stop_until_continued();
      signal_all(nodes, SIGCONT);
    }
    if (!is_in_vain || signal > 0 || errno != EAGAIN || !is_rendezvous_pending(rendezvous))
      continue;
    early = ended->status;
    write_error_for_a_while(
        fmt::format("dtrun: failed: node {} ended with status {} before the rendezvous of the "
                    "nodes completed\n",
                    ended - nodes.begin(), *early));
    signal_all(nodes, SIGKILL);
  }
}

}  // namespace

int run_emulated(const Options& options, const RunNode& run_node) {
  Options common = options;
  common.num_nodes = options.emulate_nodes;
  common.master_addr = "127.0.0.1";
  Pipe rendezvous = make_pipe();
  EmulatedStart start{.listener = listen_at_free_port(common.master_addr),
                      .rendezvous = std::move(rendezvous.writer)};
  common.master_port = static_cast<int>(dtrain::net::port_of(start.listener));
  sigset_t watched;
  sigset_t before;
  ::sigemptyset(&watched);
  for (const int signal : kPassedToNodes) ::sigaddset(&watched, signal);
  ::sigaddset(&watched, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  ::signal(SIGCHLD, SIG_DFL);  // waitpid fails if the caller ignored SIGCHLD
  adopt_orphans();
  std::vector<Node> nodes;
  for (int node = 0; node < common.num_nodes; ++node) {
    const pid_t pid = start_node(common, node, start, before, run_node);
    if (pid < 0) {
      const int error = errno;
      kill_descendants(kNodesKillLimit);
      dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot start a process: {}",
                         std::strerror(error));
    }
    nodes.push_back({.pid = pid});
  }
  start = {};
  const int status = wait_for_all(nodes, rendezvous.reader, watched);
  kill_descendants(kNodesKillLimit);
  return status;
}

}  // namespace launcher
