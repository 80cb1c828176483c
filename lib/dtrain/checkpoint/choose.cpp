#include "dtrain/checkpoint/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <sstream>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::checkpoint {
namespace {

using base::ErrorKind;

/// The result of verifying one candidate; equal on all ranks.
struct Verdict {
  format::Manifest manifest;
  std::string damage;          // empty if intact
  bool is_unreadable = false;  // a read failed, so it may be intact
};

// Prefixes of a rank's message about its share of the files.
constexpr std::string_view kUnreadable = "unreadable ";
constexpr std::string_view kDamaged = "damaged ";

[[noreturn]] void refuse(const std::string& message, bool is_unreadable) {
  if (is_unreadable) throw base::StorageError(message);
  throw base::Error(ErrorKind::checkpoint, message);
}

// Assigns files to ranks, the largest first, each to the rank with the fewest bytes. Returns this
// rank's.
std::vector<const format::FileInfo*> assign_files(const comm::ProcessGroup& group,
                                                  const std::vector<format::FileInfo>& files) {
  std::vector<const format::FileInfo*> all;
  for (const format::FileInfo& file : files) all.push_back(&file);
  std::ranges::stable_sort(all, std::ranges::greater(), &format::FileInfo::bytes);
  std::vector<std::int64_t> assigned(static_cast<std::size_t>(group.size()));  // bytes per rank
  std::vector<const format::FileInfo*> own;
  for (const format::FileInfo* file : all) {
    const auto least = std::ranges::min_element(assigned);
    *least += file->bytes;
    if (least - assigned.begin() == group.rank()) own.push_back(file);
  }
  return own;
}

// Returns whether the error means damage: a file is missing or its bytes changed.
bool is_damage(const base::Error& error) {
  return error.kind() == ErrorKind::checkpoint &&
         dynamic_cast<const base::FileError*>(&error) == nullptr;
}

// Reads the manifest and this rank's share of the files. Returns a prefixed message, empty if
// intact.
std::string find_damage(const comm::ProcessGroup& group, const std::string& path,
                        format::Manifest& manifest) {
  try {
    manifest = store::read_manifest(path);
    for (const format::FileInfo* file : assign_files(group, manifest.contents.files)) {
      store::verify_file(path, *file);
    }
  } catch (const base::Error& error) {
    return std::string(is_damage(error) ? kDamaged : kUnreadable) + error.what();
  } catch (
      const std::exception& error) {  // e.g. out of memory: the other ranks wait for the result
    return fmt::format("{}checkpoint '{}' cannot be read: {}", kUnreadable, path, error.what());
  }
  return {};
}

Verdict examine(comm::ProcessGroup& group, const std::string& path) {
  Verdict verdict;
  std::string own;
  comm::run_long(group, "verifying a checkpoint",
                 [&] { own = find_damage(group, path, verdict.manifest); });
  for (const std::string& damage : comm::exchange_texts(group, own)) {
    if (damage.empty()) continue;
    const bool is_unreadable = damage.starts_with(kUnreadable);
    if (!verdict.damage.empty() && (is_unreadable || !verdict.is_unreadable)) continue;
    verdict.damage = damage.substr((is_unreadable ? kUnreadable : kDamaged).size());
    verdict.is_unreadable = is_unreadable;
  }
  return verdict;
}

// Broadcasts rank 0's list, because network file systems may show each host different entries.
std::vector<std::int64_t> agreed_steps(comm::ProcessGroup& group, const std::string& checkpoints) {
  std::istringstream words(comm::leader_text(group, "listing checkpoints", [&] {
    return fmt::format("{}", fmt::join(store::list_steps(checkpoints), " "));
  }));
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; words >> step;) steps.push_back(step);
  return steps;
}

}  // namespace

VerifiedCheckpoint verify_checkpoint(comm::ProcessGroup& group, const std::string& path) {
  Verdict verdict = examine(group, path);
  if (!verdict.damage.empty()) {
    refuse(verdict.damage, verdict.is_unreadable);
  }
  return {.path = path, .manifest = std::move(verdict.manifest)};
}

std::optional<VerifiedCheckpoint> choose_newest(comm::ProcessGroup& group,
                                                const std::string& checkpoints, bool strict,
                                                const Notice& notice,
                                                const config::SkippedCheckpoints& earlier) {
  const std::vector<std::int64_t> steps = agreed_steps(group, checkpoints);
  std::vector<std::int64_t> unreadable;
  for (const std::int64_t step : steps) {
    const std::string path = checkpoints + "/" + store::checkpoint_name(step);
    Verdict verdict = examine(group, path);
    if (verdict.damage.empty() && verdict.manifest.step != step) {
      verdict.damage = fmt::format(
          "checkpoint '{}' does not match the step in its name: its manifest has "
          "step {}",
          path, verdict.manifest.step);
    }
    if (verdict.damage.empty()) {
      if (!earlier.contains(step, verdict.manifest.run)) {
        return VerifiedCheckpoint{path, std::move(verdict.manifest), steps, std::move(unreadable)};
      }
      if (group.rank() == 0) {
        notice(
            fmt::format("skipping checkpoint '{}': it could not be read when the run last resumed, "
                        "and its steps were repeated since; --resume {} resumes from it",
                        path, path));
      }
      continue;
    }
    if (strict) {
      refuse(fmt::format("{}; omit --strict-resume to resume from an older checkpoint",
                         verdict.damage),
             verdict.is_unreadable);
    }
    if (verdict.is_unreadable) unreadable.push_back(step);
    if (group.rank() == 0) notice(fmt::format("{}; trying an older one", verdict.damage));
  }
  if (steps.empty()) return std::nullopt;
  refuse(fmt::format("none of the {} checkpoints in '{}' is intact: restore one from a copy, "
                     "or start a new run in another folder",
                     steps.size(), checkpoints),
         !unreadable.empty());
}

}  // namespace dtrain::checkpoint
