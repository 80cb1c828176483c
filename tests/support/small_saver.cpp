// Saves and checks small checkpoints without LibTorch, for tests that interrupt system calls.
//   small_saver save RUN STEP RANKS serial|threads   prints "ready", waits for a byte on standard
//                                                    input, then saves
//   small_saver --check RUN                          prints what the next start finds
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/run_lock.h"
#include "support/example_checkpoint.h"

namespace {

namespace store = dtrain::checkpoint::store;
namespace testing = dtrain::testing;
using dtrain::base::Error;

/// Makes a system call that marks a point in a trace.
void mark(const char* name) { std::ignore = ::access(name, F_OK); }

void save_in_threads(dtrain::base::FileSystem& files, const std::string& checkpoints,
                     std::int64_t step, std::int64_t num_ranks) {
  auto manifest = testing::example_manifest(step, num_ranks);
  const auto size = static_cast<std::size_t>(num_ranks);
  std::vector<dtrain::checkpoint::format::Contents> contents(size);
  std::vector<std::exception_ptr> errors(size);
  files.make_folder(testing::example_folder(checkpoints, step));
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          contents[rank] = testing::save_example_shard(files, checkpoints, step,
                                                       static_cast<std::int64_t>(rank), num_ranks);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (const auto& part : contents) dtrain::checkpoint::format::merge(manifest.contents, part);
  testing::commit_example(files, checkpoints, manifest);
}

void save(const std::string& run_dir, std::int64_t step, std::int64_t num_ranks,
          bool with_threads) {
  dtrain::base::Disk disk(dtrain::base::ErrorKind::checkpoint);
  store::RunLock lock(run_dir);
  lock.keep();
  const std::string checkpoints = store::checkpoints_folder(run_dir);
  disk.make_folder(checkpoints);
  disk.sync_folder(run_dir);
  store::remove_leftovers(disk, checkpoints);
  // Allows strace even if only parents may trace.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  char byte = 0;
  std::puts("ready");
  std::fflush(stdout);
  std::ignore = ::read(STDIN_FILENO, &byte, 1);
  mark("small-saver-begins");
  if (with_threads) {
    save_in_threads(disk, checkpoints, step, num_ranks);
  } else {
    testing::save_example(disk, checkpoints, step, num_ranks);
  }
  const store::PruneResult removed =
      store::prune(disk, checkpoints, {.keep_last = 1}, testing::kExampleRun);
  if (!removed.failures.empty()) {
    dtrain::base::fail(dtrain::base::ErrorKind::checkpoint, "{}",
                       fmt::join(removed.failures, "; "));
  }
  mark("small-saver-ends");
}

/// Prints each checkpoint and whether it is intact, then the entries left after removing leftovers.
void check(const std::string& run_dir) {
  dtrain::base::Disk disk(dtrain::base::ErrorKind::checkpoint);
  const store::RunLock lock(run_dir);
  const std::string checkpoints = store::checkpoints_folder(run_dir);
  for (const std::int64_t step : store::list_steps(checkpoints)) {
    const std::string path = checkpoints + "/" + store::checkpoint_name(step);
    const std::string difference = testing::example_difference(path, step);
    std::printf("step %s %s\n", std::to_string(step).c_str(),
                difference.empty() ? "whole" : difference.c_str());
  }
  store::remove_leftovers(disk, checkpoints);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    std::printf("left %s\n", entry.path().filename().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 5 && arguments[0] == "save") {
      save(arguments[1], std::stoll(arguments[2]), std::stoll(arguments[3]),
           arguments[4] == "threads");
      return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "--check") {
      check(arguments[1]);
      return 0;
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "small_saver: %s\n", error.what());
    return error.exit_status();
  }
  std::fprintf(stderr, "usage: small_saver save RUN STEP RANKS serial|threads | --check RUN\n");
  return 2;
}
