// Compares the engine with the reference's values, through the code of `dtrain verify`, and tests the
// verifier with planted errors.
#include "dtrain/commands/internal/verifier.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "support/engine_run.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/temp_folder.h"
#include "support/tensor_file.h"

namespace dtrain::commands::verifier_test {
namespace {

using testing::message_of;
using testing::Names;
using testing::TempFolder;

const std::string kGolden = DTRAIN_SOURCE_DIR "/tests/golden/";

config::Config config_for(const std::string& fixture, const std::string& dtype) {
  config::Config config;
  config.verify.golden = fixture;
  set(config, "machine.dtype", dtype);
  config.machine.threads = 1;
  config.layout.pp = 1;
  config.layout.dp = 1;
  config.layout.tp = 1;
  config.batch.grad_accum = 1;
  return config;
}

std::vector<std::string> failures(const Verification& result) {
  std::vector<std::string> names;
  for (const Check& check : result.checks) {
    if (!check.passed()) {
      names.push_back(fmt::format("{}: {:.2g} > {:.2g}", check.name, check.error, check.tolerance));
    }
  }
  return names;
}

// Thread ranks of one process: dp ranks of `threads` threads each.
Verification verify_on(config::Config config, std::int64_t dp, int threads = 1) {
  config.layout.strategy = dp == 1 ? config::Strategy::single : config::Strategy::ddp;
  config.layout.dp = dp;
  std::vector<Verification> results(static_cast<std::size_t>(dp));
  comm::run_local_ranks(dp, {.timeout = std::chrono::seconds(60)},
                        [&](const std::shared_ptr<comm::World>& world) {
                          at::set_num_threads(threads);
                          results[static_cast<std::size_t>(world->rank())] =
                              verify(testing::with_dtypes(config), world);
                        });
  for (const Verification& result : results) CHECK(failures(result) == failures(results[0]));
  return results[0];
}

TEST_CASE(
    "Both fixtures are matched in float32 and float64, single and ddp, with 1 and 2 threads") {
  const std::string name = GENERATE("three_heads", "mini");
  const std::string dtype = GENERATE("float32", "float64");
  const config::Config config = config_for(kGolden + name + ".safetensors", dtype);
  for (const auto& [dp, threads] : {std::pair{1, 1}, std::pair{1, 2}, std::pair{2, 1}}) {
    INFO(name << " " << dtype << ", " << dp << " ranks of " << threads << " threads");
    const Verification result = verify_on(config, dp, threads);
    CHECK(failures(result) == std::vector<std::string>{});
    // Loss, logits, embedding, ykv and ymlp of level 0, every level's output, five gradients and
    // the RoPE buffer.
    CHECK(result.checks.size() == (name == "mini" ? 15 : 14));
  }
}

TEST_CASE("Accumulation matches the fixture too") {
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float64");
  config.batch.grad_accum = 2;
  CHECK(failures(verify_on(config, 1)) == std::vector<std::string>{});
}

// In float32 on one rank: tests/cli/numbers/verify_test.py.
TEST_CASE("Fifty AdamW steps follow the reference's trajectory") {
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float64");
  config.verify.trajectory = kGolden + "trajectory.json";
  config.verify.name = "three_heads";
  const Verification result = verify_on(config, 2);
  CHECK(failures(result) == std::vector<std::string>{});
  CHECK(result.checks.size() == 14 + 4 + 5);
}

// --- planted errors ---

// A copy of a fixture and its meta.json, in which `edit` has changed one tensor.
template <typename Edit>
std::string planted(const TempFolder& folder, const std::string& fixture, const std::string& tensor,
                    Edit edit) {
  const auto file = checkpoint::format::SafetensorsFile::open(kGolden + fixture + ".safetensors");
  std::vector<checkpoint::NamedTensor> tensors;
  bool found = false;
  for (const auto& view : file.tensors()) {
    tensors.push_back({view.name, checkpoint::to_tensor(view)});
    if (view.name != tensor) continue;
    edit(tensors.back().value);
    found = true;
  }
  REQUIRE(found);
  std::filesystem::copy_file(kGolden + "meta.json", folder.path("meta.json"),
                             std::filesystem::copy_options::overwrite_existing);
  const std::string path = folder.path(fixture + ".safetensors");
  testing::write_tensor_file(path, tensors);
  return path;
}

// Adds 1e-4 of the largest element to one element in the middle.
void add_error(at::Tensor& tensor) {
  const double scale = tensor.abs().max().item<double>();
  tensor.view({-1})[tensor.numel() / 2].add_(1e-4 * scale);
}

TEST_CASE("An error of 1e-4 in one element of any expected tensor is reported by name") {
  const std::string fixture = GENERATE("three_heads", "mini");
  const std::string dtype = GENERATE("float32", "float64");
  const TempFolder folder;
  std::vector<std::string> names{
      "grad.decoder", "grad.encoder", "grad.encoder_v", "grad.lm_head",    "grad.embed.weight",
      "logits",       "act.embed",    "act.layer0.ykv", "act.layer0.ymlp", "act.layer2.out"};
  for (const std::string& name : names) {
    INFO(fixture << " " << dtype << " " << name);
    const auto found =
        failures(verify_on(config_for(planted(folder, fixture, name, add_error), dtype), 1));
    REQUIRE(found.size() == 1);
    CHECK(found.front().starts_with(name + ":"));
  }
}

TEST_CASE("An error in a row that only the second rank computes is detected by both") {
  const TempFolder folder;
  const auto late = [](at::Tensor& tensor) { tensor[1][20][3].add_(1e-3); };
  const std::string path = planted(folder, "three_heads", "act.layer1.out", late);
  CHECK(failures(verify_on(config_for(path, "float32"), 2)).size() == 1);
}

TEST_CASE("A planted error in the loss or in a weight is detected") {
  const TempFolder folder;
  const auto loss = [](at::Tensor& tensor) { tensor.mul_(1 + 1e-5); };
  const auto found =
      failures(verify_on(config_for(planted(folder, "mini", "loss", loss), "float32"), 1));
  REQUIRE(found.size() == 1);
  CHECK(found.front().starts_with("loss:"));
  for (const std::string name : {"weight.lm_head", "weight.decoder", "weight.encoder",
                                 "weight.encoder_v", "weight.attn.freqs"}) {
    INFO(name);
    const auto weight = [](at::Tensor& tensor) {
      tensor.view({-1})[tensor.numel() / 3].add_(tensor.abs().max().item<double>() * 1e-2);
    };
    const std::string path = planted(folder, "mini", name, weight);
    CHECK_FALSE(verify_on(config_for(path, "float32"), 1).passed());
  }
}

// True if the first three losses of a trajectory are accepted after the third is changed.
bool accepts_losses(const TempFolder& folder, double planted_error) {
  std::ifstream file(kGolden + "trajectory.json");
  auto json = nlohmann::json::parse(file);
  auto& loss = json["runs"]["three_heads"]["loss"];
  loss[2] = loss[2].get<double>() + planted_error;
  json["offsets"].get_ref<nlohmann::json::array_t&>().resize(3);
  folder.write("trajectory.json", json.dump());
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float32");
  config.verify.trajectory = folder.path("trajectory.json");
  config.verify.name = "three_heads";
  const Verification result = verify_on(config, 1);
  const auto check = std::find_if(result.checks.begin(), result.checks.end(), [](const Check& one) {
    return one.name == "trajectory.loss_first_5_steps";
  });
  REQUIRE(check != result.checks.end());
  return check->passed();
}

TEST_CASE("A planted error in a trajectory's loss is detected") {
  const TempFolder folder;
  std::filesystem::copy_file(kGolden + "text.bin", folder.path("text.bin"));
  CHECK(accepts_losses(folder, 0));
  CHECK_FALSE(accepts_losses(folder, 1e-4));
}

TEST_CASE("A NaN among the expected values is an error, not a pass") {
  const TempFolder folder;
  const auto nan = [](at::Tensor& tensor) { tensor.view({-1})[5].fill_(NAN); };
  const std::string path = planted(folder, "three_heads", "grad.decoder", nan);
  CHECK(failures(verify_on(config_for(path, "float32"), 1)).size() == 1);
}

// --- refusals ---

using Tensors = std::map<std::string, at::Tensor>;

// The error message for three_heads after `edit`.
std::string refusal(const std::function<void(Tensors&)>& edit) {
  const TempFolder folder;
  const auto file = checkpoint::format::SafetensorsFile::open(kGolden + "three_heads.safetensors");
  Tensors tensors;
  for (const auto& view : file.tensors()) tensors[view.name] = checkpoint::to_tensor(view);
  edit(tensors);
  std::vector<checkpoint::NamedTensor> named;
  for (const auto& [name, value] : tensors) named.push_back({name, value});
  testing::write_tensor_file(folder.path("edited.safetensors"), named);
  const std::string message = message_of(base::ErrorKind::checkpoint, [&] {
    verify_on(config_for(folder.path("edited.safetensors"), "float32"), 1);
  });
  CHECK(message.find("edited.safetensors") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  return message;
}

TEST_CASE("A fixture that lacks a tensor is rejected by name") {
  for (const std::string name :
       {"grad.encoder", "weight.lm_head", "weight.attn.freqs", "loss", "logits", "inputs",
        "act.embed", "act.layer0.ykv", "act.layer0.ymlp", "act.layer0.out"}) {
    INFO(name);
    CHECK_THAT(refusal([&](Tensors& t) { t.erase(name); }), Catch::Contains(name));
  }
}

TEST_CASE("A tensor that the model does not have is rejected by name") {
  for (const std::string name :
       {"grad.foo", "weight.foo", "act.foo", "act.layer3.ykv", "grad.attn.freqs", "foo"}) {
    INFO(name);
    CHECK_THAT(refusal([&](Tensors& t) { t[name] = at::ones({3}); }),
               Catch::Contains("'" + name + "'"));
  }
}

TEST_CASE("A token outside the vocabulary is rejected with its position") {
  for (const std::string name : {"inputs", "targets"}) {
    for (const std::int64_t token : {-100, -1, 256}) {
      CHECK_THAT(refusal([&](Tensors& t) { t[name][1][7].fill_(token); }),
                 Names(name, token, "row 1", "position 7", "0 to 255"));
    }
  }
}

TEST_CASE("Tensors of another shape are rejected with both shapes") {
  const std::map<std::string, std::string> shapes{{"inputs", "(2, 64)"},
                                                  {"targets", "(2, 64)"},
                                                  {"weight.decoder", "(768, 48)"},
                                                  {"weight.attn.freqs", "(1, 1, 1, 256)"},
                                                  {"grad.encoder", "(3, 48, 256)"},
                                                  {"grad.embed.weight", "(256, 48)"},
                                                  {"logits", "(2, 64, 256)"},
                                                  {"loss", "(1)"},
                                                  {"act.embed", "(2, 64, 48)"},
                                                  {"act.layer0.ykv", "(2, 3, 64, 48)"},
                                                  {"act.layer0.ymlp", "(2, 64, 48)"},
                                                  {"act.layer2.out", "(2, 64, 48)"}};
  for (const auto& [name, shape] : shapes) {
    INFO(name);
    const auto refused = [&](const std::function<at::Tensor(const at::Tensor&)>& edit) {
      return refusal([&](Tensors& t) { t[name] = edit(t[name]); });
    };
    // Other inputs define another batch size, so the targets are reported.
    const std::string culprit = name == "inputs" ? "targets" : name;
    CHECK_THAT(refused([](const at::Tensor& t) {
                 return at::cat({t, t});
               }),
               Catch::Contains("'" + culprit + "' is") && Catch::Contains(shape));
    CHECK_THAT(refused([](const at::Tensor& t) { return t.flatten().narrow(0, 0, 0); }),
               Catch::Contains("'" + name + "' is"));
  }
  CHECK_THAT(refusal([](Tensors& t) { t["targets"] = t["targets"].narrow(1, 0, 10); }),
             Names("targets", "I64 (2, 10)", "I64 (2, 64)"));
  CHECK_THAT(refusal([](Tensors& t) { t["logits"] = t["logits"].narrow(0, 0, 1); }),
             Names("logits", "F32 (1, 64, 256)"));
}

TEST_CASE("Tensors of another dtype, and an odd number of neurons, are rejected") {
  const auto as = [](const std::string& name, at::ScalarType dtype) {
    return refusal([&](Tensors& t) { t[name] = t[name].to(dtype); });
  };
  CHECK_THAT(as("inputs", at::kInt), Names("inputs", "I32 (2, 64)", "I64"));
  CHECK_THAT(as("targets", at::kInt), Names("targets", "I32 (2, 64)", "I64"));
  CHECK_THAT(as("weight.encoder", at::kBFloat16), Names("weight.encoder", "BF16"));
  CHECK_THAT(as("grad.decoder", at::kLong), Names("grad.decoder", "I64"));
  CHECK_THAT(
      refusal([](Tensors& t) { t["weight.encoder"] = t["weight.encoder"].narrow(2, 0, 255); }),
      Names("--neurons 255", "odd"));
}

TEST_CASE("A fixture whose rows cannot be divided among ranks is rejected") {
  const std::string path = kGolden + "three_heads.safetensors";
  const std::string uneven =
      message_of(base::ErrorKind::usage, [&] { verify_on(config_for(path, "float32"), 3); });
  CHECK_THAT(uneven, Names(path, "2 rows", "3 ranks", "--grad-accum"));
}

// With a decoder of zeros the branch outputs zeros, and no gradient reaches the encoders.
TEST_CASE("Expected values that are all zero are compared by absolute difference") {
  const TempFolder folder;
  const auto zero = [](at::Tensor& tensor) { tensor.zero_(); };
  const std::string path = planted(folder, "three_heads", "weight.decoder", zero);
  const auto error_of = [&](const std::string& name) {
    for (const Check& check : verify_on(config_for(path, "float32"), 1).checks) {
      if (check.name == name) return check.error;
    }
    return -1.0;
  };
  CHECK(error_of("act.layer0.ymlp") > 0.1);  // the fixture still expects the real one
  const auto file = checkpoint::format::SafetensorsFile::open(path);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& view : file.tensors())
    tensors.push_back({view.name, checkpoint::to_tensor(view)});
  for (auto& [name, value] : tensors) {
    if (name == "act.layer0.ymlp" || name == "grad.encoder") value.zero_();
  }
  testing::write_tensor_file(path, tensors);
  CHECK(error_of("act.layer0.ymlp") == 0);
  CHECK(error_of("grad.encoder") == 0);
}

TEST_CASE("A trajectory with fewer losses than steps is rejected") {
  const TempFolder folder;
  std::filesystem::copy_file(kGolden + "text.bin", folder.path("text.bin"));
  std::ifstream file(kGolden + "trajectory.json");
  auto json = nlohmann::json::parse(file);
  json["runs"]["three_heads"]["loss"].erase(7);
  folder.write("trajectory.json", json.dump());
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float32");
  config.verify.trajectory = folder.path("trajectory.json");
  config.verify.name = "three_heads";
  CHECK_THAT(message_of(base::ErrorKind::data, [&] { verify_on(config, 1); }),
             Names("three_heads", 49, "50 steps"));
}

TEST_CASE("An unknown trajectory is rejected by name") {
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float32");
  config.verify.trajectory = kGolden + "trajectory.json";
  config.verify.name = "five_heads";
  const std::string message = message_of(base::ErrorKind::data, [&] { verify_on(config, 1); });
  CHECK(message.find("five_heads") != std::string::npos);
}

}  // namespace
}  // namespace dtrain::commands::verifier_test
