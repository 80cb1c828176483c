// Promise 2: a run that is stopped and resumed, on any number of ranks, has the bits of an
// uninterrupted run (docs/guide/checkpoints.md).
#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "parity/saved_run.h"
#include "support/messages.h"
#include "support/oracles/sensitivity.h"
#include "support/settings.h"
#include "support/temp_folder.h"
#include "support/values.h"

namespace dtrain::testing::checkpoint_test {
namespace {

namespace format = checkpoint::format;

void check_all(const std::vector<Trace>& traces, const std::string& expected) {
  for (const Trace& trace : traces) CHECK(trace.text() == expected);
}

TEST_CASE("A run saved on any of 1, 2, 4, 8 ranks and resumed on any other keeps all bits") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  const Trace whole = train_on_threads(laid_out(config, 1, 8)).front();
  for (const std::int64_t saving : {1, 2, 4, 8}) {
    const TempFolder folder;
    train_and_save(laid_out(config, saving, 8 / saving), 2, folder.path("c"), /*staged=*/true);
    for (const std::int64_t loading : {1, 2, 4, 8}) {
      INFO("saved on " << saving << ", loaded on " << loading);
      check_all(load_and_train(laid_out(config, loading, 8 / loading), folder.path("c")),
                text_after(whole, 2));
    }
  }
}

// Half of the pairs of layouts use tied levels, the other half untied ones, so each layout saves
// and loads both. A layout that loads its own checkpoint uses both.
bool is_for(bool ties, std::size_t saving, std::size_t loading) {
  return saving == loading || ties == ((saving + loading) % 2 == 0);
}

TEST_CASE("A run saved under any sharding and resumed under any other keeps all bits") {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  const Trace whole = train_on_threads(laid_out(config, 1, 8)).front();
  const std::vector<config::Config> layouts{laid_out(config, 1, 8),
                                            laid_out(config, 2, 4),
                                            sharded(config, 2, 4, "zero:1"),
                                            sharded(config, 4, 2, "zero:2"),
                                            sharded(config, 8, 1, "zero:3"),
                                            sharded(config, 2, 4, "fsdp:full"),
                                            sharded(config, 4, 2, "hybrid:2"),
                                            sharded(config, 4, 2, "fsdp:grad-op")};
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const config::Config& saving = layouts[from];
    const TempFolder folder;
    train_and_save(saving, 2, folder.path("c"), /*staged=*/true);
    for (std::size_t to = 0; to < layouts.size(); ++to) {
      if (!is_for(config::bdh::settings_of(config.model).tie_layers, from, to)) continue;
      const config::Config& loading = layouts[to];
      INFO("saved by " << saving.layout.strategy << " on " << saving.layout.dp << ", loaded by "
                       << loading.layout.strategy << " on " << loading.layout.dp);
      check_all(load_and_train(loading, folder.path("c")), text_after(whole, 2));
    }
  }
}

// Single rank, tensor parallel, pipeline, and all axes with shards.
std::vector<config::Config> meshes(const config::Config& config) {
  config::Config vocabulary = config;
  vocabulary.layout.tp_vocab = true;
  config::Config interleaved = config;
  set(interleaved, "layout.schedule_pp", "interleaved:2");
  config::Config sharded_stages = config;
  set(sharded_stages, "layout.data_axis", "fsdp");
  return {laid_out(config, 1, 8),
          sharded(config, 4, 2, "fsdp:full"),
          meshed(vocabulary, {{Axis::tp, 4}}, 1),
          meshed(config, {{Axis::tp, 8}}, 2),
          meshed(interleaved, {{Axis::pp, 2}}, 4),
          meshed(sharded_stages, {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, 2)};
}

TEST_CASE(
    "A run saved on any mesh and resumed on any other matches an uninterrupted one, in float64") {
  config::Config config = tiny_config();
  config.model.layers = 4;
  config.model.vocab = 257;  // which four ranks do not divide
  set(config, "model.heads", "4");
  config::bdh::settings_of(config.model).tie_layers = GENERATE(true, false);
  set(config, "machine.dtype", "float64");
  const std::vector<config::Config> layouts = meshes(config);
  const TraceBound bound = rounding_bound_of(config, at::kDouble);
  for (std::size_t saving = 0; saving < layouts.size(); ++saving) {
    const Trace whole = train_on_threads(layouts[saving]).front();
    const TempFolder folder;
    train_and_save(layouts[saving], 2, folder.path("c"), /*staged=*/true);
    for (std::size_t loading = 0; loading < layouts.size(); ++loading) {
      if (!is_for(config::bdh::settings_of(config.model).tie_layers, saving, loading)) continue;
      INFO("saved by layout " << saving << ", loaded by " << loading);
      const std::vector<Trace> traces = load_and_train(layouts[loading], folder.path("c"));
      if (loading == saving) check_all(traces, text_after(whole, 2));
      for (const auto& [name, value] : whole.state) {
        INFO(name);
        CHECK(largest_error(traces.front().state.at(name), value) <= 2 * bound.state.at(name));
      }
    }
  }
}

TEST_CASE("Without staging, a save holds the state at the call") {
  const config::Config config = laid_out(tiny_config(), 2, 2);
  const TempFolder folder;
  train_and_save(config, 3, folder.path("c"), /*staged=*/false);
  check_all(load_and_train(config, folder.path("c")),
            text_after(train_on_threads(config).front(), 3));
}

TEST_CASE("SGD keeps its momentum across a checkpoint, under another layout too") {
  config::Config config = tiny_config();
  set(config, "train.optimizer", "sgd");
  config.train.lr = 0.5;
  const Trace whole = train_on_threads(laid_out(config, 1, 8)).front();
  const TempFolder folder;
  train_and_save(sharded(config, 4, 2, "fsdp:full"), 2, folder.path("c"), /*staged=*/true);
  check_all(load_and_train(sharded(config, 2, 4, "zero:1"), folder.path("c")),
            text_after(whole, 2));
}

// A rank's state after `steps`, without the pieces of these names.
MemorySource state_of(const config::Config& config, comm::World& world, std::int64_t steps,
                      const std::vector<std::string>& lost = {}) {
  EngineRun run(config, world);
  run.steps(steps);
  checkpoint::State state = run.job().engine().whole_model().state();
  std::erase_if(state, [&](const checkpoint::Piece& piece) {
    return std::ranges::find(lost, piece.name) != lost.end();
  });
  return MemorySource(state);
}

// Returns the error of loading such a state into an engine, or an empty string.
std::string error_without(const config::Config& saving, const config::Config& loading,
                          const std::vector<std::string>& lost) {
  std::string error;
  on_threads(1, [&](comm::World& world) {
    MemorySource source = state_of(saving, world, 1, lost);
    EngineRun run(loading, world);
    try {
      run.job().engine().whole_model().load_state(source, saving.train.freeze);
    } catch (const std::exception& found) {
      error = found.what();
    }
  });
  return error;
}

TEST_CASE("A checkpoint may lack only the moments of parameters frozen when it was saved") {
  const config::Config free = tiny_config();
  config::Config frozen = free;
  frozen.train.freeze = {"encoder"};
  CHECK(error_without(frozen, frozen, {}).empty());
  CHECK(error_without(frozen, free, {}).empty());
  CHECK(error_without(free, frozen, {}).empty());
  const std::string moment = "optimizer.exp_avg_sq.decoder";
  for (const config::Config& loading : {free, frozen}) {
    CHECK(error_without(frozen, loading, {moment}) == "no piece " + moment);
    CHECK(error_without(free, loading, {moment}) == "no piece " + moment);
  }
  CHECK(error_without(free, free, {"optimizer.exp_avg.encoder"}) ==
        "no piece optimizer.exp_avg.encoder");
  CHECK(error_without(frozen, frozen, {"optimizer.num_updates"}) ==
        "no piece optimizer.num_updates");
}

TEST_CASE("Moments of formerly frozen parameters are read, or all missing") {
  const config::Config config = tiny_config();
  const std::vector<std::string> frozen_before{"encoder"};  // and saved by an older version
  on_threads(1, [&](comm::World& world) {
    MemorySource whole = state_of(config, world, 2);
    MemorySource half = state_of(config, world, 2, {"optimizer.exp_avg.encoder"});
    EngineRun run(config, world);
    run.job().engine().whole_model().load_state(whole, frozen_before);
    const MemorySource loaded(run.job().engine().whole_model().state());
    for (const auto& [name, value] : whole.tensors()) {
      expect(same_bits(loaded.tensors().at(name), value), name);
    }
    std::string error;
    try {
      run.job().engine().whole_model().load_state(half, frozen_before);
    } catch (const std::exception& found) {
      error = found.what();
    }
    expect(error == "no piece optimizer.exp_avg.encoder", "half of the moments: " + error);
  });
}

TEST_CASE("An unfrozen parameter starts with zero moments under every layout") {
  const config::Config free = tiny_config();
  config::Config frozen = free;
  frozen.train.freeze = {"encoder", "lm_head"};
  const TempFolder folder;
  train_and_save(sharded(frozen, 4, 2, "fsdp:full"), 2, folder.path("c"), /*staged=*/true);
  const checkpoint::store::Reader reader(folder.path("c/step-2"));
  CHECK(reader.find("optimizer.exp_avg.decoder") != nullptr);
  CHECK(reader.find("optimizer.exp_avg.encoder") == nullptr);
  const std::string expected =
      load_and_train(laid_out(free, 1, 8), folder.path("c"), frozen.train.freeze).front().text();
  for (const config::Config& layout :
       {laid_out(free, 2, 4), sharded(free, 2, 4, "zero:1"), sharded(free, 4, 2, "zero:3"),
        sharded(free, 4, 2, "hybrid:2")}) {
    check_all(load_and_train(layout, folder.path("c"), frozen.train.freeze), expected);
  }
  CHECK_THROWS_WITH(load_and_train(laid_out(free, 1, 8), folder.path("c")),
                    Names("step-2", "optimizer.exp_avg.encoder"));
}

TEST_CASE("Each rank writes its share, and together they write every element once") {
  const TempFolder folder;
  train_and_save(laid_out(tiny_config(), 4, 2), 1, folder.path("c"), /*staged=*/true);
  const checkpoint::store::Reader reader(folder.path("c/step-1"));
  std::map<std::string, std::int64_t> bytes;  // by suffix of the file name
  for (const format::FileInfo& file : reader.manifest().contents.files) {
    bytes[file.name.substr(file.name.find('-'))] += file.bytes;
  }
  CHECK(bytes.size() == 4);
  for (const auto& [rank, size] : bytes) {
    INFO(rank);
    CHECK(10 * size < 12 * bytes.begin()->second);
  }
}

TEST_CASE("A rank reads only the bytes of its state") {
  const config::Config config = laid_out(tiny_config(), 2, 2);
  const TempFolder folder;
  train_and_save(config, 1, folder.path("c"), /*staged=*/true);
  on_threads(2, [&](comm::World& world) {
    EngineRun run(config, world);
    checkpoint::store::Reader reader(folder.path("c/step-1"));
    checkpoint::ReaderSource source(reader);
    run.job().engine().whole_model().load_state(source);
    std::int64_t needed = 0;
    for (const auto& piece : run.job().engine().whole_model().state()) {
      needed += static_cast<std::int64_t>(piece.tensor.nbytes());
    }
    if (reader.bytes_read() != needed) throw std::runtime_error("read too much");
  });
}

// A file system in which one rank's files cannot be written. is_silent: without a reason.
class FullDisk final : public base::FileSystem {
 public:
  FullDisk(std::string needle, bool is_silent)
      : needle_(std::move(needle)), is_silent_(is_silent) {}

  std::unique_ptr<base::OutputFile> create_file(const std::string& path) override {
    if (path.find(needle_) != std::string::npos) {
      if (is_silent_) throw std::runtime_error("");
      base::fail(base::ErrorKind::checkpoint, "'{}': no room", path);
    }
    return disk_.create_file(path);
  }
  void make_folder(const std::string& path) override { disk_.make_folder(path); }
  void sync_folder(const std::string& path) override { disk_.sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override { disk_.rename(from, to); }
  void remove_file(const std::string& path) override { disk_.remove_file(path); }
  void remove_folder(const std::string& path) override { disk_.remove_folder(path); }

 private:
  std::string needle_;
  bool is_silent_;
  base::Disk disk_{base::ErrorKind::checkpoint};
};

TEST_CASE("A rank that cannot write is named on all ranks, and the save leaves nothing") {
  const config::Config config = laid_out(tiny_config(), 2, 2);
  const std::string needle = GENERATE("optimizer-00002", "manifest.json");
  const bool is_silent = GENERATE(false, true);
  const TempFolder folder;
  train_and_save(config, 1, folder.path("c"), /*staged=*/true);
  on_threads(2, [&](comm::World& world) {
    EngineRun run(config, world);
    FullDisk disk(needle, is_silent);
    checkpoint::Saver saver(world_group(run), disk, options_in(folder.path("c")));
    saver.begin({.step = 2}, run.job().engine().whole_model().state());
    const checkpoint::SaveReport report = saver.finish();
    const auto says = [&](const std::string& text) { return report.error.find(text) != text.npos; };
    if (is_silent ? report.error.empty() : !says("no room") || !says(needle)) {
      throw std::runtime_error("reported: " + report.error);
    }
  });
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path("c")), {}) == 1);
  CHECK(std::filesystem::exists(folder.path("c/step-1/manifest.json")));
}

TEST_CASE("A checkpoint skipped by an earlier start is skipped again, unless that start wrote it") {
  const config::Config config = laid_out(tiny_config(), 2, 2);
  const TempFolder folder;
  train_and_save(config, 1, folder.path("c"), /*staged=*/true);
  train_and_save(config, 2, folder.path("c"), /*staged=*/true);
  const std::string by = GENERATE("another", "test");
  on_threads(2, [&](comm::World& world) {
    const auto group = group_of_all(world);
    std::string notices;
    const auto chosen = checkpoint::choose_newest(*group, folder.path("c"), false,
                                                  [&](std::string_view text) { notices += text; },
                                                  {.run = by, .steps = {2, 7}});
    const std::int64_t expected = by == "test" ? 2 : 1;
    if (chosen.value().manifest.step != expected) throw std::runtime_error("took the wrong one");
    const bool is_named = notices.find("step-2") != std::string::npos;
    if (is_named != (world.rank() == 0 && expected == 1)) throw std::runtime_error(notices);
  });
}

TEST_CASE("A checkpoint with a damaged file is skipped on all ranks, and named") {
  const config::Config config = laid_out(tiny_config(), 2, 2);
  const TempFolder folder;
  train_and_save(config, 1, folder.path("c"), /*staged=*/true);
  train_and_save(config, 2, folder.path("c"), /*staged=*/true);
  const std::string file = GENERATE("manifest.json", "model-00001-of-00002.safetensors",
                                    "optimizer-00002-of-00002.safetensors");
  const std::string name = "c/step-2/" + file;
  std::string bytes = folder.read(name);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 4);
  folder.write(name, bytes);
  on_threads(2, [&](comm::World& world) {
    const auto group = group_of_all(world);
    std::string notices;
    const auto notice = [&](std::string_view text) { notices += text; };
    const auto chosen = checkpoint::choose_newest(*group, folder.path("c"), false, notice);
    if (chosen.value().manifest.step != 1) throw std::runtime_error("took the damaged one");
    if (world.rank() == 0 && notices.find(file) == std::string::npos) {
      throw std::runtime_error("notices: " + notices);
    }
    bool refused = false;
    try {
      (void)checkpoint::choose_newest(*group, folder.path("c"), true, notice);
    } catch (const base::Error& error) {
      refused = std::string(error.what()).find(file) != std::string::npos;
    }
    if (!refused) throw std::runtime_error("a strict resume took an older one");
  });
}

}  // namespace
}  // namespace dtrain::testing::checkpoint_test
