#include "dtrain/checkpoint/saver.h"

#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/checkpoint/store/shard_writer.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::checkpoint {
namespace {

// The interval at which ranks report that they are still writing, so that a slow disk does not look
// like an unresponsive peer.
constexpr base::Seconds kPoll(0.5);
constexpr std::chrono::seconds kSlow(60);

// Runs a task. Returns the failure's message; empty on success.
template <typename Task>
std::string failure_of(const Task& task) {
  try {
    task();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an error without a message" : text;
  } catch (const store::SaveCancelled&) {
    return "cancelled";
  }
}

template <typename T>
bool is_running(const std::future<T>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace

Saver::Saver(comm::ProcessGroup& world, base::FileSystem& files, SaverOptions options)
    : world_(world), files_(files), options_(std::move(options)) {}

Saver::~Saver() { stop_.request_stop(); }

void Saver::stage(const State& state) {
  staging_.emplace(owned_part(state));
  // Allocates the gather buffers now, so that a save during training needs no memory.
  (void)comm::gather_texts(world_, "");
}

void Saver::begin(const SavePoint& point, const State& state) {
  DTRAIN_CHECK(phase_ == Phase::idle);
  start_ = base::Clock::now();
  slow_ = base::ReportTimer(kSlow);
  unlimited_ = false;
  manifest_ = options_.manifest;
  manifest_.step = point.step;
  manifest_.samples = point.samples;
  manifest_.tokens = point.tokens;
  manifest_.history = point.history;
  best_step_ = point.best_step;
  report_ = {.step = point.step,
             .path = options_.checkpoints + "/" + store::checkpoint_name(point.step)};
  const State own = owned_part(state);
  // Device state always needs a host copy.
  const auto once = staging_ || are_on_host(own) ? nullptr : std::make_shared<StagingBuffer>(own);
  StagingBuffer* const copy = staging_ ? &*staging_ : once.get();
  auto pieces = copy != nullptr ? copy->take(own) : bytes_of(own);
  const State held = copy != nullptr ? State{} : own;
  written_ =
      base::start_task([this, once, held, pieces = std::move(pieces)] { return write(pieces); });
  phase_ = Phase::writing;
  report_.stall_seconds = base::seconds_since(start_);
}

bool Saver::is_busy() const { return is_running(written_) || is_running(committed_); }

void Saver::warn_if_slow() {
  if (!is_busy() || !slow_.is_due()) return;
  base::log_warning("rank {} has been {} for {}: the disk is slow or does not respond",
                    world_.rank(),
                    phase_ == Phase::writing ? "writing " + folder() : "committing " + report_.path,
                    base::readable_time(slow_.waited()));
}

std::optional<SaveReport> Saver::advance() {
  if (phase_ == Phase::writing) {
    collect();
    if (report_.error.empty()) return std::nullopt;
  }
  if (phase_ == Phase::idle) return std::nullopt;
  return end();
}

std::optional<SaveReport> Saver::finish_within(base::Seconds patience) {
  const auto end = base::Clock::now() + std::chrono::duration_cast<base::Clock::duration>(patience);
  while (is_saving()) {
    if (written_.valid()) written_.wait_until(end);
    if (committed_.valid()) committed_.wait_until(end);
    warn_if_slow();
    const at::Tensor busy = at::full({1}, is_busy() ? 1.0 : 0.0, at::kDouble);
    world_.all_reduce(busy).wait_host();
    if (busy.item<double>() > 0) return std::nullopt;
    if (auto report = advance()) return report;
  }
  return std::nullopt;
}

SaveReport Saver::finish() {
  DTRAIN_CHECK(is_saving());
  unlimited_ = true;
  for (;;) {
    if (auto report = finish_within(kPoll)) return *report;
  }
}

std::string Saver::folder() const {
  return store::temporary_folder(options_.checkpoints, manifest_.step, manifest_.run);
}

// Runs in the save's thread.
Saver::Written Saver::write(const std::vector<store::PieceBytes>& pieces) const {
  Written own;
  own.error = failure_of([&] {
    files_.make_folder(options_.checkpoints);
    files_.make_folder(folder());
    const store::Shard shard{.folder = folder(), .rank = world_.rank(), .num_ranks = world_.size()};
    own.contents = store::write_shard(
        files_, shard, pieces,
        store::RateLimiter(options_.bytes_per_second, stop_.get_token(), &unlimited_));
  });
  return own;
}

// Exchanges the ranks' results and starts the commit if all succeeded. Only rank 0 receives the
// file lists, which are long with thousands of ranks.
void Saver::collect() {
  const Written own = written_.get();
  const std::vector<std::string> errors = comm::exchange_texts(world_, own.error);
  const auto failed =
      std::ranges::find_if(errors, [](const std::string& error) { return !error.empty(); });
  if (failed != errors.end()) {
    report_.error = fmt::format("rank {}: {}", failed - errors.begin(), *failed);
  } else {
    for (const auto& text : comm::gather_texts(world_, format::to_text(own.contents))) {
      format::merge(manifest_.contents, format::parse_contents(text));
    }
  }
  phase_ = Phase::committing;
  if (!is_rank_0()) return;
  report_.bytes = format::bytes_in(manifest_.contents);
  const bool is_whole = report_.error.empty();
  committed_ = base::start_task([this, is_whole] {
    Committed committed = is_whole ? commit() : Committed{};
    if (!is_whole || !committed.error.empty()) discard();
    return committed;
  });
}

// Runs in the save's thread, on rank 0.
Saver::Committed Saver::commit() const {
  Committed done;
  std::string sync_failure;
  done.error =
      failure_of([&] { sync_failure = store::commit(files_, options_.checkpoints, manifest_); });
  if (!done.error.empty()) return done;
  if (sync_failure.empty()) {  // the folder may be new
    sync_failure =
        failure_of([&] { files_.sync_folder(base::parent_folder(options_.checkpoints)); });
  }
  done.warning = sync_failure.empty()
                     ? prune()
                     : "may not survive a crash of the machine, so older checkpoints are kept: " +
                           sync_failure;
  return done;
}

// Runs in the save's thread, on rank 0. Returns which old checkpoints were not removed, and why.
std::string Saver::prune() const {
  std::string stays;
  const std::string failure = failure_of([&] {
    store::Retention retention = options_.retention;
    retention.newest_step = manifest_.step;
    retention.best_step = best_step_;
    const store::PruneResult removed =
        store::prune(files_, options_.checkpoints, retention, manifest_.run);
    std::vector<std::string> parts;
    if (!removed.failures.empty()) {
      parts.push_back(
          fmt::format("old checkpoints were not removed: {}", fmt::join(removed.failures, "; ")));
    }
    if (!removed.left_alone.empty()) {
      parts.push_back(fmt::format("left alone: {}", fmt::join(removed.left_alone, "; ")));
    }
    stays = fmt::format("{}", fmt::join(parts, "; "));
  });
  return failure.empty() ? stays : "old checkpoints were not removed: " + failure;
}

// Removes the files of a failed save. If that fails too, the next start removes them.
void Saver::discard() const {
  try {
    store::remove_folder_and_files(files_, folder());
  } catch (const base::Error&) {
  }
}

SaveReport Saver::end() {
  phase_ = Phase::idle;
  if (is_rank_0()) {
    Committed committed = committed_.get();
    if (report_.error.empty()) report_.error = std::move(committed.error);
    report_.warning = std::move(committed.warning);
  }
  // Only rank 0 knows the result of the commit.
  report_.error = comm::exchange_texts(world_, report_.error).front();
  report_.seconds = base::seconds_since(start_);
  if (base::Trace* trace = base::Trace::of_thread()) {
    trace->add_concurrent("write and commit", start_, {"step", report_.step});
  }
  if (!staging_) report_.stall_seconds = report_.seconds;
  return report_;
}

}  // namespace dtrain::checkpoint
