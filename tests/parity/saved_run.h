// Saves runs of an engine, and resumes them.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/choose.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/checkpoint/state.h"
#include "support/engine_run.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::testing {

inline checkpoint::SaverOptions options_in(const std::string& folder) {
  checkpoint::SaverOptions options{.checkpoints = folder};
  options.manifest.run = "test";
  return options;
}

inline comm::ProcessGroup& world_group(EngineRun& run) { return run.job().world().control(); }

// Completes a save that `saver` has begun.
inline void finish(checkpoint::Saver& saver) {
  const checkpoint::SaveReport report = saver.finish();
  if (!report.error.empty()) throw std::runtime_error(report.error);
}

// Trains to `step` and saves there; with staging, the state changes before the files are written.
inline void train_and_save(const config::Config& config, std::int64_t step,
                           const std::string& folder, bool staged) {
  on_threads(num_ranks(config), [&](comm::World& world) {
    EngineRun run(config, world);
    run.steps(step);
    base::Disk disk(base::ErrorKind::checkpoint);
    checkpoint::SaverOptions options = options_in(folder);
    // Slow enough that a step ends before anything is written.
    if (staged) options.bytes_per_second = 1e4;
    checkpoint::Saver saver(world_group(run), disk, options);
    const checkpoint::State state = run.job().engine().whole_model().state();
    if (staged) saver.stage(state);
    saver.begin({.step = step, .samples = step * config.batch.global}, state);
    if (staged) run.steps(1);
    finish(saver);
  });
}

// Resumes from the newest checkpoint to the last step and returns each rank's result.
// frozen_before: parameters that were frozen in the run that saved. loaded: called on every rank
// after it has loaded its state.
inline std::vector<Trace> load_and_train(
    const config::Config& config, const std::string& folder,
    const std::vector<std::string>& frozen_before = {},
    const std::function<void(EngineRun& run, std::size_t rank)>& loaded = {}) {
  std::vector<Trace> traces(static_cast<std::size_t>(num_ranks(config)));
  on_threads(num_ranks(config), [&](comm::World& world) {
    const auto group = group_of_all(world);
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto chosen = checkpoint::choose_newest(*group, folder, true, [](std::string_view) {});
    EngineRun run(config, world, chosen.value().manifest.step);
    checkpoint::store::Reader reader(chosen->path);
    checkpoint::ReaderSource source(reader);
    run.job().engine().whole_model().load_state(source, frozen_before);
    if (loaded) loaded(run, rank);
    run.steps(config.train.steps - chosen->manifest.step);
    traces[rank] = run.trace();
  });
  return traces;
}

// Losses and norms after `step`, and the last state.
inline std::string text_after(Trace trace, std::int64_t step) {
  trace.losses.erase(trace.losses.begin(), trace.losses.begin() + step);
  trace.norms.erase(trace.norms.begin(), trace.norms.begin() + step);
  return trace.text();
}

}  // namespace dtrain::testing
