#include "dtrain/job/shared_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::job {
namespace {

using base::ErrorKind;

// A client of NFS that has looked for a name in vain believes so for half a minute, unless it opens
// the folder: then it asks the server whether that has changed.
void open_nearest_folder(std::filesystem::path path) {
  base::Descriptor folder;
  while (folder.get() < 0 && path.has_relative_path()) {
    path = path.parent_path();
    folder = base::Descriptor(
        ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK));
  }
}

// Network file systems may show a new name a moment later on other machines.
bool appears(const std::string& path) {
  constexpr std::chrono::milliseconds kPause(20);
  constexpr base::Seconds kPatience(5);
  const auto begin = base::Clock::now();
  while (::access(path.c_str(), F_OK) != 0) {
    open_nearest_folder(path);
    if (base::seconds_since(begin) > kPatience.count()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// The ranks that do not see the file; equal on all ranks.
std::vector<std::size_t> blind_ranks(comm::ProcessGroup& world, const std::string& path) {
  bool is_seen = false;
  comm::run_long(world, "looking for the run folder", [&] { is_seen = appears(path); });
  std::vector<std::size_t> blind;
  const auto answers = comm::exchange_texts(world, is_seen ? "" : "no");
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].empty()) blind.push_back(rank);
  }
  return blind;
}

}  // namespace

std::string shared_file(const std::string& run_dir) { return run_dir + "/seen-by-all-ranks"; }

std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                     const std::string& run_dir,
                                                     const std::string& job) {
  if (world.size() > 1) {
    const std::string path = fmt::format("{}.tmp-{}", shared_file(run_dir), job);
    base::Disk disk(ErrorKind::checkpoint);
    comm::run_long_on_leader(world, "writing to the run folder",
                             [&] { base::write_anew(disk, path, [](base::OutputFile&) {}); });
    const std::vector<std::size_t> blind = blind_ranks(world, path);
    comm::run_long_on_leader(world, "writing to the run folder", [&] { disk.remove_file(path); });
    if (!blind.empty()) {
      base::fail(ErrorKind::usage,
                 "--run-dir {}: {} of {} {} not see rank 0's folder, and every rank writes "
                 "its part of a checkpoint there; name a folder that all machines share",
                 run_dir, base::ranks_text(blind), world.size(), blind.size() == 1 ? "does" : "do");
    }
  }
  return std::make_unique<base::HeldFolder>(run_dir, ErrorKind::checkpoint);
}

}  // namespace dtrain::job
