#include "dtrain/checkpoint/saver.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::checkpoint {
namespace {

// The interval at which ranks report that they are still writing, so that a slow disk does not look
// like an unresponsive peer.
constexpr base::Seconds kPoll(0.5);
constexpr std::chrono::seconds kSlow(60);

template <typename T>
bool is_running(const std::future<T>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace

Saver::Saver(comm::ProcessGroup& world, base::FileSystem& files, SaverOptions options)
    : world_(world), files_(files), options_(std::move(options)) {}

Saver::~Saver() {
  if (pending_) pending_->cancel();
}

void Saver::stage(const State& state) {
  staging_.emplace(owned_part(state));
  // Allocates the gather buffers now, so that a save during training needs no memory.
  (void)comm::gather_texts(world_, "");
}

void Saver::begin(const SavePoint& point, const State& state) {
  DTRAIN_CHECK(phase_ == Phase::idle);
  start_ = base::Clock::now();
  slow_ = base::ReportTimer(kSlow);
  store::PendingCheckpointOptions pending{.checkpoints = options_.checkpoints,
                                          .manifest = options_.manifest,
                                          .retention = options_.retention,
                                          .rank = world_.rank(),
                                          .num_ranks = world_.size(),
                                          .bytes_per_second = options_.bytes_per_second};
  pending.manifest.step = point.step;
  pending.manifest.samples = point.samples;
  pending.manifest.tokens = point.tokens;
  pending.manifest.history = point.history;
  pending.retention.newest_step = point.step;
  pending.retention.best_step = point.best_step;
  pending_.emplace(files_, std::move(pending));
  report_ = {.step = point.step,
             .path = options_.checkpoints + "/" + store::checkpoint_name(point.step)};
  const State own = owned_part(state);
  // Device state always needs a host copy.
  const auto once = staging_ || are_on_host(own) ? nullptr : std::make_shared<StagingBuffer>(own);
  StagingBuffer* const copy = staging_ ? &*staging_ : once.get();
  auto pieces = copy != nullptr ? copy->take(own) : bytes_of(own);
  const State held = copy != nullptr ? State{} : own;
  written_ = base::start_task(
      [this, once, held, pieces = std::move(pieces)] { return pending_->write(pieces); });
  phase_ = Phase::writing;
  report_.stall_seconds = base::seconds_since(start_);
}

bool Saver::is_busy() const { return is_running(written_) || is_running(committed_); }

void Saver::warn_if_slow() {
  if (!is_busy() || !slow_.is_due()) return;
  base::log_warning(
      "rank {} has been {} for {}: the disk is slow or does not respond", world_.rank(),
      phase_ == Phase::writing ? "writing " + pending_->folder() : "committing " + report_.path,
      base::readable_time(slow_.waited()));
}

std::optional<SaveReport> Saver::advance() {
  if (phase_ == Phase::committing) return end();
  if (phase_ == Phase::writing) collect();  // starts a commit, or the removal of a failed save
  return std::nullopt;
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
  pending_->lift_limit();
  for (;;) {
    if (auto report = finish_within(kPoll)) return *report;
  }
}

// Exchanges the ranks' results and starts the commit if all succeeded. Only rank 0 receives the
// file lists, which are long with thousands of ranks.
void Saver::collect() {
  const store::WriteResult own = written_.get();
  const std::vector<std::string> errors = comm::exchange_texts(world_, own.error);
  const auto failed =
      std::ranges::find_if(errors, [](const std::string& error) { return !error.empty(); });
  if (failed != errors.end()) {
    report_.error = fmt::format("rank {}: {}", failed - errors.begin(), *failed);
  } else {
    for (const auto& text : comm::gather_texts(world_, format::to_text(own.contents))) {
      pending_->add(format::parse_contents(text));
    }
  }
  phase_ = Phase::committing;
  if (!is_rank_0()) return;
  report_.bytes = pending_->bytes();
  const bool is_whole = report_.error.empty();
  committed_ = base::start_task([this, is_whole] {
    if (is_whole) return pending_->commit();
    pending_->discard();
    return store::CommitResult{};
  });
}

SaveReport Saver::end() {
  phase_ = Phase::idle;
  if (is_rank_0()) {
    store::CommitResult committed = committed_.get();
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
