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

/// The verdict on one candidate; equal on all ranks.
struct Verdict {
  format::Manifest manifest;
  std::string damage;          // empty: whole
  bool is_unreadable = false;  // it was not given, so that it may be whole
};

// The message about a rank's share: a word, then the damage.
constexpr std::string_view kUnreadable = "unreadable ";
constexpr std::string_view kDamaged = "damaged ";

[[noreturn]] void refuse(const std::string& message, bool is_unreadable) {
  if (is_unreadable) throw base::StorageError(message);
  throw base::Error(ErrorKind::checkpoint, message);
}

// Deals this rank its files: each file, the largest first, goes to the rank with the fewest bytes.
std::vector<const format::FileInfo*> deal(const comm::ProcessGroup& group,
                                          const std::vector<format::FileInfo>& files) {
  std::vector<const format::FileInfo*> all;
  for (const format::FileInfo& file : files) all.push_back(&file);
  std::ranges::stable_sort(all, std::ranges::greater(), &format::FileInfo::bytes);
  std::vector<std::int64_t> dealt(static_cast<std::size_t>(group.size()));  // bytes of each rank
  std::vector<const format::FileInfo*> own;
  for (const format::FileInfo* file : all) {
    const auto least = std::ranges::min_element(dealt);
    *least += file->bytes;
    if (least - dealt.begin() == group.rank()) own.push_back(file);
  }
  return own;
}

// Returns whether a file is missing or holds other bytes than were written.
bool is_damage(const base::Error& error) {
  return error.kind() == ErrorKind::checkpoint &&
         dynamic_cast<const base::FileError*>(&error) == nullptr;
}

// Reads the manifest and this rank's share of the files.
std::string find_damage(const comm::ProcessGroup& group, const std::string& path,
                        format::Manifest& manifest) {
  try {
    manifest = store::read_manifest(path);
    for (const format::FileInfo* file : deal(group, manifest.contents.files)) {
      store::verify_file(path, *file);
    }
  } catch (const base::Error& error) {
    return std::string(is_damage(error) ? kDamaged : kUnreadable) + error.what();
  } catch (const std::exception& error) {  // e.g. no memory: the other ranks wait to hear of it
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

// Rank 0's list, because file systems do not show all machines the same at the same time.
std::vector<std::int64_t> agreed_steps(comm::ProcessGroup& group, const std::string& checkpoints) {
  std::istringstream words(comm::leader_text(group, "listing checkpoints", [&] {
    return fmt::format("{}", fmt::join(store::list_steps(checkpoints), " "));
  }));
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; words >> step;) steps.push_back(step);
  return steps;
}

}  // namespace

Chosen choose(comm::ProcessGroup& group, const std::string& path) {
  Verdict verdict = examine(group, path);
  if (!verdict.damage.empty()) {
    refuse(verdict.damage, verdict.is_unreadable);
  }
  return {.path = path, .manifest = std::move(verdict.manifest)};
}

std::optional<Chosen> choose_newest(comm::ProcessGroup& group, const std::string& checkpoints,
                                    bool strict, const Notice& notice,
                                    const config::SkippedCheckpoints& earlier) {
  const std::vector<std::int64_t> steps = agreed_steps(group, checkpoints);
  std::vector<std::int64_t> unreadable;
  for (const std::int64_t step : steps) {
    const std::string path = checkpoints + "/" + store::checkpoint_name(step);
    Verdict verdict = examine(group, path);
    if (verdict.damage.empty() && verdict.manifest.step != step) {
      verdict.damage = fmt::format(
          "checkpoint '{}' is not of the step that it is named after: its manifest has "
          "step {}",
          path, verdict.manifest.step);
    }
    if (verdict.damage.empty()) {
      if (!earlier.contains(step, verdict.manifest.run)) {
        return Chosen{path, std::move(verdict.manifest), steps, std::move(unreadable)};
      }
      if (group.rank() == 0) {
        notice(
            fmt::format("checkpoint '{}' is passed over: it could not be read when the run last "
                        "resumed, which began its steps anew; --resume {} resumes from it",
                        path, path));
      }
      continue;
    }
    if (strict) {
      refuse(fmt::format("{}; leave out --strict-resume to resume from an older checkpoint",
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
