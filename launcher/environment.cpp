#include "launcher/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/proof.h"
#include "launcher/job.h"

namespace launcher {
namespace {

namespace fs = std::filesystem;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

/// Counts the entries of a folder whose names begin with `prefix`; with digits_only, only digits
/// may follow.
int count_entries(const char* folder, std::string_view prefix, bool digits_only) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    const bool is_number = !rest.empty() && rest.find_first_not_of("0123456789") == rest.npos;
    if (is_number || !digits_only) ++count;
  }
  return count;
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

/// Environment variables, as names and values.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// OMP_NUM_THREADS of a rank.
std::string threads_of(const PreparedJob& job) {
  if (std::string given = environment_value("OMP_NUM_THREADS"); !given.empty()) return given;
  const Placement& placement = job.placement;
  const int ranks_of_machine =
      job.options.emulate_nodes > 0 ? placement.world_size() : placement.own().num_ranks;
  const int share = std::max(1, static_cast<int>(dtrain::base::usable_cores()) / ranks_of_machine);
  return std::to_string(job.binding.threads > 0 ? std::min(job.binding.threads, share) : share);
}

/// The variables that a rank gets beyond those that dtrun itself was started with.
Variables variables_of(const PreparedJob& job, const RankStart& rank) {
  const Placement& placement = job.placement;
  const std::string index = std::to_string(rank.index);
  const std::string world_size = std::to_string(placement.world_size());
  const std::string master_port = std::to_string(placement.master_port);
  Variables own = {
      {"RANK", index},
      {"LOCAL_RANK", std::to_string(rank.index - placement.own().first_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(placement.own().num_ranks)},
      {"ROLE_RANK", index},
      {"ROLE_WORLD_SIZE", world_size},
      {"GROUP_RANK", std::to_string(placement.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(placement.num_nodes())},
      {"MASTER_ADDR", placement.master_addr},
      {"MASTER_PORT", master_port},
      {"DTRUN_MASTER", placement.master_addr + ":" + master_port},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 serves the store, not an agent
      {"OMP_NUM_THREADS", threads_of(job)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.folder.run_id()},
      {"DTRUN_CONTROL_FD", std::to_string(rank.control_fd)}};
  const auto add_number = [&](const char* name, int value, int least) {
    if (value >= least) own.emplace_back(name, std::to_string(value));
  };
  const auto add_text = [&](const char* name, const std::string& value) {
    if (!value.empty()) own.emplace_back(name, value);
  };
  add_number("DTRUN_STORE_FD", job.store_fd(rank.index), 0);
  add_number("DTRUN_STORE_PORT", placement.store_port, 1);
  add_number("DTRUN_STORE_LISTENER_FD", job.store_listener_fd(rank.index), 0);
  add_text("TORCHELASTIC_ERROR_FILE", job.folder.error_file(rank.index));
  add_text("DTRAIN_JOB_TOKEN", placement.rank_token);
  add_text("DTRUN_RESTART_REASON", job.restart_reason);
  add_text("DTRUN_COMMITTED", job.committed);
  if (rank.terminal_columns > 0) own.emplace_back("DTRUN_TERMINAL", "1");
  add_number("COLUMNS", rank.terminal_columns, 1);
  return own;
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
  const std::string_view folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  for (const std::string_view folder : dtrain::base::split(folders, ':')) {
    const std::string candidate = folder.empty() ? name : fmt::format("{}/{}", folder, name);
    if (is_executable_file(candidate)) return candidate;
  }
  std::error_code error;
  const fs::path sibling = fs::read_symlink("/proc/self/exe", error).replace_filename(name);
  if (is_executable_file(sibling.string())) return sibling.string();
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

std::vector<std::string> environment_of(const PreparedJob& job, const RankStart& rank) {
  const Variables own = variables_of(job, rank);
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_own = std::ranges::find(own, name, &Variables::value_type::first) != own.end();
    // The ranks of several nodes get their own secret, in DTRAIN_JOB_TOKEN.
    const bool is_replaced = name == "DTRAIN_JOB_TOKEN_FILE" && !job.placement.rank_token.empty();
    // If dtrun itself runs in a rank of another launcher, its ranks must not inherit that
    // launcher's descriptors, nor the file in which it looks for its rank's error.
    const bool is_outer = name == "TORCHELASTIC_ERROR_FILE" || name.starts_with("DTRUN_");
    if (!is_own && !is_replaced && !is_outer) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

}  // namespace launcher
