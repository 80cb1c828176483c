#include "dtrain/config/match.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/llama/settings.h"
#include "dtrain/config/resolve/resolve.h"
#include "support/settings.h"

namespace dtrain::config::match_test {
namespace {

constexpr MatchBy kBoth[] = {MatchBy::parameters, MatchBy::flops};
constexpr std::string_view kLayers = "model.layers";
constexpr std::string_view kWidth = "model.width";
constexpr std::string_view kNeurons = "model.neurons";
constexpr std::string_view kIntermediate = "model.intermediate_size";

Config bdh_of(std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t neurons) {
  Config config;
  config.model = {.name = "bdh",
                  .layers = layers,
                  .width = width,
                  .heads = heads,
                  .family = bdh::Settings{.neurons = neurons}};
  (void)resolve_computation(config, {});
  return config;
}

Config llama_of(std::int64_t layers, std::int64_t width, std::int64_t heads,
                std::int64_t intermediate) {
  Config config;
  config.model = {.name = "llama",
                  .layers = layers,
                  .width = width,
                  .heads = heads,
                  .family = llama::Settings{.intermediate = intermediate}};
  return config;
}

// The request for a model of the family `name` that matches `matched`.
SizeRequest request_for(std::string_view name, const Config& matched, MatchBy by) {
  Config config = matched;
  config.model.name = name;
  config.machine = {};
  config.layout = {};
  config.model.family = {};
  (void)resolve_computation(config, {});
  return {.config = config, .by = by, .count = count_of(by, matched)};
}

// Counts the model anew, and checks that it is valid.
double difference_of(const SizeRequest& request, const ModelConfig& model) {
  family_of(model).check(model);
  Config config = request.config;
  config.model = model;
  return count_of(request.by, config) / request.count - 1;
}

// Matches a model with `matched`, whose free sizes all change.
void check_match(std::string_view name, const Config& matched, MatchBy by) {
  const SizeRequest request = request_for(name, matched, by);
  const SizedModel sized = match_sizes(request);
  INFO(name << " by " << by << " with " << matched.model.layers << " layers of width "
            << matched.model.width);
  CHECK(sized.is_match());
  CHECK(std::abs(sized.difference) <= 0.02);
  CHECK(sized.difference == Approx(difference_of(request, sized.model)));
  CHECK(sized.model.layers == matched.model.layers);
  CHECK(sized.model.heads == matched.model.heads);
  CHECK(sized.model.vocab == matched.model.vocab);
}

TEST_CASE("Sizes of another family match within 2 percent in both directions") {
  for (const std::int64_t layers : {1, 4, 24}) {
    for (const std::int64_t heads : {1, 3, 8}) {
      for (const std::int64_t head_dim : {16, 32, 128}) {
        for (const std::int64_t vocab : {256, 32000}) {
          for (const std::int64_t seq_len : {64, 2048}) {
            Config bdh = bdh_of(layers, heads * head_dim, heads, 4 * head_dim);
            Config llama = llama_of(layers, heads * head_dim, heads, 5 * head_dim);
            for (Config* config : {&bdh, &llama}) {
              config->model.vocab = vocab;
              config->data.seq_len = seq_len;
            }
            for (const MatchBy by : kBoth) {
              check_match("llama", bdh, by);
              check_match("bdh", llama, by);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("Sizes match within a family that counts otherwise") {
  Config untied = bdh_of(6, 64, 4, 512);
  set(untied, "model.tie_layers", "off");
  Config tied = llama_of(4, 128, 4, 352);
  set(tied, "model.tie_embeddings", "on");
  for (const MatchBy by : kBoth) {
    check_match("bdh", untied, by);
    check_match("llama", tied, by);
  }
}

TEST_CASE("The Llama that matches mini has an MLP of about 8/3 of its width") {
  const SizedModel sized =
      match_sizes(request_for("llama", bdh_of(4, 64, 4, 512), MatchBy::parameters));
  CHECK(sized.model.layers == 4);
  CHECK(sized.model.width == 88);
  CHECK(sized.model.heads == 4);
  CHECK(llama::settings_of(sized.model).intermediate == 240);
  CHECK(sized.count == 423'192);
}

TEST_CASE("The BDH that matches a Llama has about 32 neurons per unit of width") {
  for (const MatchBy by : kBoth) {
    const SizedModel sized = match_sizes(request_for("bdh", llama_of(8, 512, 8, 1376), by));
    const std::int64_t neurons = 8 * bdh::settings_of(sized.model).neurons;
    CHECK(static_cast<double>(neurons) / static_cast<double>(sized.model.width) ==
          Approx(32).epsilon(0.15));
  }
}

TEST_CASE("Fixed sizes stay, and the free ones match") {
  for (const MatchBy by : kBoth) {
    SizeRequest request = request_for("llama", bdh_of(4, 64, 4, 512), by);
    request.fixed = {kWidth};
    SizedModel sized = match_sizes(request);
    CHECK(sized.is_match());
    CHECK(sized.model.width == 64);
    CHECK(sized.model.layers == 4);

    request.fixed = {kIntermediate, kLayers};
    request.config.model.layers = 7;
    llama::settings_of(request.config.model).intermediate = 200;
    sized = match_sizes(request);
    CHECK(sized.model.layers == 7);
    CHECK(llama::settings_of(sized.model).intermediate == 200);
    CHECK(sized.difference == Approx(difference_of(request, sized.model)));

    request = request_for("bdh", llama_of(4, 128, 4, 352), by);
    request.fixed = {kNeurons};
    bdh::settings_of(request.config.model).neurons = 300;
    sized = match_sizes(request);
    CHECK(bdh::settings_of(sized.model).neurons == 300);
    CHECK(sized.difference == Approx(difference_of(request, sized.model)));
  }
}

TEST_CASE("The number of layers changes only if no other size can match") {
  // Four layers of width 256 have more parameters than mini, even with the smallest MLP.
  SizeRequest request = request_for("llama", bdh_of(4, 64, 4, 512), MatchBy::parameters);
  request.fixed = {kWidth};
  request.config.model.width = 256;
  const SizedModel sized = match_sizes(request);
  CHECK(sized.is_match());
  CHECK(sized.model.layers == 1);
  CHECK(sized.model.width == 256);
}

TEST_CASE("If no sizes match, the nearest ones are found") {
  for (const MatchBy by : kBoth) {
    SizeRequest request = request_for("llama", bdh_of(4, 64, 4, 512), by);
    request.fixed = {kWidth, kIntermediate};
    request.config.model.width = 256;
    llama::settings_of(request.config.model).intermediate = 700;
    double nearest = std::numeric_limits<double>::infinity();
    ModelConfig model = request.config.model;
    for (model.layers = 1; model.layers <= 1024; ++model.layers) {
      nearest = std::min(nearest, std::abs(difference_of(request, model)));
    }
    const SizedModel sized = match_sizes(request);
    CHECK(std::abs(sized.difference) == Approx(nearest));
    CHECK(sized.is_match() == (nearest <= 0.02));
    CHECK(sized.model.width == 256);
    CHECK(llama::settings_of(sized.model).intermediate == 700);

    request.fixed = {kLayers, kWidth, kIntermediate};
    CHECK(match_sizes(request).difference == Approx(difference_of(request, request.config.model)));
  }
}

TEST_CASE("FLOPs count the attention that is computed") {
  Config config = bdh_of(4, 64, 4, 512);
  config.data.seq_len = 1024;
  const double automatic = count_of(MatchBy::flops, config);
  set(config, "machine.attention", "chunked:128");
  CHECK(count_of(MatchBy::flops, config) == automatic);
  set(config, "machine.attention", "full");
  CHECK(count_of(MatchBy::flops, config) > automatic);
}

}  // namespace
}  // namespace dtrain::config::match_test
