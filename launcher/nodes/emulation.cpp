#include "launcher/nodes/emulation.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "launcher/descendants.h"
#include "launcher/nodes/listener.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
constexpr std::chrono::milliseconds kKillLimit{1000};

using RunNode = std::function<int(Options, Descriptor)>;

struct Node {
  pid_t pid = -1;
  bool ended = false;
  int status = 0;
};

pid_t start_node(const Options& options, int node, Descriptor& listener, const sigset_t& mask,
                 const RunNode& run_node) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setpgid(0, 0);  // a Ctrl-C comes once, from the parent
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  Options own = options;
  own.node_rank = node;
  if (node > 0) listener.reset();
  ::_exit(run_node(std::move(own), std::move(listener)));
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

void wait_for_all(std::vector<Node>& nodes, const sigset_t& watched) {
  while (true) {
    reap(nodes);
    if (std::ranges::all_of(nodes, &Node::ended)) return;
    const int signal = ::sigwaitinfo(&watched, nullptr);
    if (signal <= 0 || signal == SIGCHLD) continue;
    for (const Node& node : nodes) {
      if (!node.ended) ::kill(node.pid, signal);
    }
  }
}

}  // namespace

int run_emulated(const Options& options, const RunNode& run_node) {
  Options common = options;
  common.num_nodes = options.emulate_nodes;
  common.master_addr = "127.0.0.1";
  Descriptor listener = listen_on_loopback(common.master_port);
  sigset_t watched;
  sigset_t before;
  ::sigemptyset(&watched);
  for (const int signal : kPassedOn) ::sigaddset(&watched, signal);
  ::sigaddset(&watched, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &watched, &before);
  ::signal(SIGCHLD, SIG_DFL);  // a caller may ignore it, and nobody could be waited for
  adopt_orphans();
  std::vector<Node> nodes;
  for (int node = 0; node < common.num_nodes; ++node) {
    const pid_t pid = start_node(common, node, listener, before, run_node);
    if (pid < 0) {
      const int error = errno;
      kill_descendants(kKillLimit);
      dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot start a process: {}",
                         std::strerror(error));
    }
    nodes.push_back({.pid = pid});
  }
  listener.reset();
  wait_for_all(nodes, watched);
  kill_descendants(kKillLimit);
  return nodes.front().status;
}

}  // namespace launcher
