// The engine against the reference's own numbers, through what `dtrain verify` runs; and the
// verifier against planted errors.
#include "dtrain/train/verifier.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "support/local_ranks.h"
#include "support/temp_folder.h"

namespace dtrain::train {
namespace {

using testing::message_of;
using testing::TempFolder;

const std::string kGolden = DTRAIN_SOURCE_DIR "/tests/golden/";

config::Config config_for(const std::string& fixture, const std::string& dtype) {
  config::Config config;
  config.verify.golden = fixture;
  config.machine.dtype = dtype;
  config.machine.threads = 1;
  config.layout.dp = 1;
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

// Threads of the one process: dp ranks of `threads` threads each.
Verification verify_on(config::Config config, std::int64_t dp, int threads = 1) {
  config.layout.strategy = dp == 1 ? "single" : "ddp";
  config.layout.dp = dp;
  std::vector<Verification> results(static_cast<std::size_t>(dp));
  comm::run_local_ranks(dp, {.timeout = std::chrono::seconds(60)},
                        [&](const std::shared_ptr<comm::World>& world) {
                          at::set_num_threads(threads);
                          results[static_cast<std::size_t>(world->rank())] = verify(config, world);
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

TEST_CASE("Fifty AdamW steps follow the reference's trajectory") {
  const std::string dtype = GENERATE("float32", "float64");
  config::Config config = config_for(kGolden + "three_heads.safetensors", dtype);
  config.verify.trajectory = kGolden + "trajectory.json";
  config.verify.name = "three_heads";
  const Verification result = verify_on(config, dtype == "float64" ? 2 : 1);
  CHECK(failures(result) == std::vector<std::string>{});
  CHECK(result.checks.size() == 14 + 4 + 5);
}

// --- planted errors ---

// A copy of a fixture, its meta.json beside it, in which `edit` has changed one tensor.
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
  checkpoint::write_tensor_file(path, tensors);
  return path;
}

// 1e-4 of the largest element, added to one element in the middle.
void add_error(at::Tensor& tensor) {
  const double scale = tensor.abs().max().item<double>();
  tensor.view({-1})[tensor.numel() / 2].add_(1e-4 * scale);
}

TEST_CASE("An error of 1e-4 in one element of any expected tensor is noticed by its name") {
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

TEST_CASE("An error in a row that only the second rank computes is noticed by both") {
  const TempFolder folder;
  const auto late = [](at::Tensor& tensor) { tensor[1][20][3].add_(1e-3); };
  const std::string path = planted(folder, "three_heads", "act.layer1.out", late);
  CHECK(failures(verify_on(config_for(path, "float32"), 2)).size() == 1);
}

TEST_CASE("A planted error in the loss or in a weight is noticed") {
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

// Whether the losses of the first three steps of a trajectory, the third one changed, are accepted.
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

TEST_CASE("A planted error in a trajectory's loss is noticed") {
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

TEST_CASE("A fixture that lacks a tensor, or whose rows cannot be dealt, is refused by name") {
  const TempFolder folder;
  const std::string path = kGolden + "three_heads.safetensors";
  const auto file = checkpoint::format::SafetensorsFile::open(path);
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& view : file.tensors()) {
    if (view.name != "grad.encoder") tensors.push_back({view.name, checkpoint::to_tensor(view)});
  }
  checkpoint::write_tensor_file(folder.path("less.safetensors"), tensors);
  const std::string missing = message_of(base::ErrorKind::checkpoint, [&] {
    verify_on(config_for(folder.path("less.safetensors"), "float32"), 1);
  });
  CHECK(missing.find("less.safetensors") != std::string::npos);
  CHECK(missing.find("grad.encoder") != std::string::npos);
  const std::string uneven =
      message_of(base::ErrorKind::usage, [&] { verify_on(config_for(path, "float32"), 3); });
  CHECK(uneven.find("2 rows cannot be dealt to 3 ranks") != std::string::npos);
}

TEST_CASE("An unknown trajectory is refused with its name") {
  config::Config config = config_for(kGolden + "three_heads.safetensors", "float32");
  config.verify.trajectory = kGolden + "trajectory.json";
  config.verify.name = "five_heads";
  const std::string message = message_of(base::ErrorKind::data, [&] { verify_on(config, 1); });
  CHECK(message.find("five_heads") != std::string::npos);
}

}  // namespace
}  // namespace dtrain::train
