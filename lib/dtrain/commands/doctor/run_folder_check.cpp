#include "dtrain/commands/doctor/run_folder_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "dtrain/base/file_system.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/job/shared_folder.h"

namespace dtrain::commands::doctor {
namespace {

using base::ErrorKind;
namespace fs = std::filesystem;

// The folders that have to be made, outermost first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = fs::absolute(folder, error).lexically_normal();
       !at.empty() && !fs::exists(at, error) && at != at.parent_path(); at = at.parent_path()) {
    if (at.has_filename()) missing.insert(missing.begin(), at);
  }
  return missing;
}

// Why no file can be written there; empty: one can. Makes the folder.
std::string refusal(const std::string& run_dir, const std::string& name) {
  std::error_code error;
  fs::create_directories(run_dir, error);
  if (error) return fmt::format("'{}' cannot be created ({})", run_dir, error.message());
  try {
    base::Disk disk(ErrorKind::usage);
    const std::string path = fmt::format("{}.tmp-{}", job::shared_file(run_dir), name);
    const auto file = disk.create_file(path);
    const std::byte byte{};
    try {
      file->write({&byte, 1});
      file->close();
    } catch (const base::Error&) {
      disk.remove_file(path);
      throw;
    }
    disk.remove_file(path);
    return {};
  } catch (const base::Error& caught) {
    return caught.what();
  }
}

// why: of this rank; empty: it could write, or did not try. Returns whether there is no refusal.
bool find_refusals(comm::ProcessGroup& world, const std::string& why, Findings& findings) {
  const std::vector<std::string> answers = comm::exchange_texts(world, why);
  std::vector<int> refused;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) refused.push_back(static_cast<int>(rank));
  }
  if (refused.empty()) return true;
  findings.problem(
      ErrorKind::usage,
      fmt::format("rank{} {} cannot write to --run-dir: {}", refused.size() == 1 ? "" : "s",
                  rank_list(refused), answers[static_cast<std::size_t>(refused.front())]));
  return false;
}

void find_folder(comm::ProcessGroup& world, const std::string& run_dir, const std::string& job,
                 Findings& findings) {
  // Rank 0 first: where it cannot write there is nothing for others to see.
  const bool is_first = world.rank() == 0;
  if (!find_refusals(world, is_first ? refusal(run_dir, job) : "", findings)) return;
  try {
    (void)job::hold_shared_folder(world, run_dir, job);
  } catch (const base::Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return findings.problem(error);
  }
  const std::string own = fmt::format("{}-{}", job, world.rank());
  if (!find_refusals(world, is_first ? "" : refusal(run_dir, own), findings)) return;
  findings.fact("run folder", fmt::format("{}: all ranks see rank 0's, and can write", run_dir));
}

}  // namespace

void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings) {
  if (run_dir.empty()) return findings.fact("run folder", "not given: add --run-dir to check it");
  std::vector<fs::path> made;
  if (world.rank() == 0) made = missing_folders(run_dir);
  const std::string job = comm::exchange_texts(world, checkpoint::store::new_start_id()).front();
  find_folder(world, run_dir, job, findings);
  world.barrier();
  for (; !made.empty(); made.pop_back()) ::rmdir(made.back().c_str());
}

}  // namespace dtrain::commands::doctor
