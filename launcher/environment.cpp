#include "launcher/environment.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/net/proof.h"

namespace launcher {
namespace {

using dtrain::base::ErrorKind;
using dtrain::base::fail;

/// Entries of a folder that are `prefix` and, with digits_only, a number.
int count_entries(const char* folder, std::string_view prefix, bool digits_only) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder), &::closedir);
  if (!dir) return 0;
  int count = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    std::string_view name = entry->d_name;
    if (name.starts_with('.') || !name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    const bool digits =
        !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    if (digits || !digits_only) ++count;
  }
  return count;
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

/// dtrun's own folder, with a slash at its end; empty where it cannot be known.
std::string own_folder() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  path.resize(static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

int count_gpus() {
  const int driver = count_entries("/proc/driver/nvidia/gpus", "", false);
  const int present = driver > 0 ? driver : count_entries("/dev", "nvidia", true);
  return static_cast<int>(dtrain::base::visible_gpus_of_process(present));
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!name.empty()) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const std::string candidate = folder.empty() ? name : fmt::format("{}/{}", folder, name);
    if (is_executable_file(candidate)) return candidate;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (const std::string sibling = own_folder() + name; is_executable_file(sibling)) return sibling;
  const bool is_here = !name.empty() && ::access(name.c_str(), R_OK) == 0;
  const std::string advice = !is_here                ? "check the name and PATH"
                             : name.ends_with(".py") ? fmt::format("try python3 {}", name)
                                                     : fmt::format("try ./{}", name);
  fail(ErrorKind::spawn, "cannot start '{}': not found; {}", name, advice);
}

std::string environment_value(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

std::string job_secret_of_environment() {
  return dtrain::net::job_secret(environment_value("DTRAIN_JOB_TOKEN"),
                                 environment_value("DTRAIN_JOB_TOKEN_FILE"));
}

std::vector<std::string> environment_of(const RankEnvironment& rank) {
  const char* const user_threads = std::getenv("OMP_NUM_THREADS");
  const int threads =
      std::max(1, static_cast<int>(dtrain::base::usable_cores()) / rank.ranks_of_machine);
  const int own_threads = rank.threads > 0 ? std::min(rank.threads, threads) : threads;
  std::vector<std::pair<std::string, std::string>> own = {
      {"RANK", std::to_string(rank.rank)},
      {"LOCAL_RANK", std::to_string(rank.local_rank)},
      {"WORLD_SIZE", std::to_string(rank.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(rank.local_world_size)},
      {"ROLE_RANK", std::to_string(rank.rank)},
      {"ROLE_WORLD_SIZE", std::to_string(rank.world_size)},
      {"GROUP_RANK", std::to_string(rank.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(rank.num_nodes)},
      {"MASTER_ADDR", rank.master_addr},
      {"MASTER_PORT", std::to_string(rank.master_port)},
      {"DTRUN_MASTER", fmt::format("{}:{}", rank.master_addr, rank.master_port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // nobody serves a store there before rank 0 does
      {"OMP_NUM_THREADS", user_threads != nullptr && *user_threads != '\0'
                              ? std::string(user_threads)
                              : std::to_string(own_threads)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(rank.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(rank.max_restarts)},
      {"TORCHELASTIC_RUN_ID", rank.run_id},
      {"TORCHELASTIC_ERROR_FILE", rank.error_file},
      {"DTRUN_CONTROL_FD", std::to_string(rank.control_fd)}};
  if (rank.store_fd >= 0) own.emplace_back("DTRUN_STORE_FD", std::to_string(rank.store_fd));
  if (rank.store_port > 0) own.emplace_back("DTRUN_STORE_PORT", std::to_string(rank.store_port));
  if (rank.store_listener >= 0) {
    own.emplace_back("DTRUN_STORE_LISTENER_FD", std::to_string(rank.store_listener));
  }
  if (!rank.rank_token.empty()) own.emplace_back("DTRAIN_JOB_TOKEN", rank.rank_token);
  if (!rank.restart_reason.empty()) own.emplace_back("DTRUN_RESTART_REASON", rank.restart_reason);
  if (!rank.committed.empty()) own.emplace_back("DTRUN_COMMITTED", rank.committed);
  if (rank.terminal_columns > 0) {
    own.emplace_back("DTRUN_TERMINAL", "1");
    own.emplace_back("COLUMNS", std::to_string(rank.terminal_columns));
  }
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const bool ours =
        std::any_of(own.begin(), own.end(), [&](const auto& v) { return v.first == name; });
    // A dtrun inside a rank of another dtrun must not hand on the outer one's descriptors.
    // The ranks of several nodes have a secret of their own.
    const bool is_replaced = name == "DTRAIN_JOB_TOKEN_FILE" && !rank.rank_token.empty();
    if (!ours && !is_replaced && !name.starts_with("DTRUN_")) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

}  // namespace launcher
