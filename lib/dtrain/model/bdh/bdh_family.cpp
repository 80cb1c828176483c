// BDH as the rest of the program knows it.
#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/bdh_partition.h"
#include "dtrain/model/bdh/bdh_recurrent.h"
#include "dtrain/model/family.h"

namespace dtrain::model::bdh {
namespace {

using config::ModelConfig;
using config::bdh::Settings;

// Levels with matrices of their own; 0 where all share one set.
std::int64_t count_untied_levels(const TensorShapes& tensors) {
  std::int64_t levels = 0;
  while (tensors.has(fmt::format("levels.{}.encoder", levels))) ++levels;
  return levels;
}

Settings told_heads(const TensorShapes& tensors, const std::string& encoder, std::int64_t told) {
  const std::int64_t all_neurons = tensors.size(encoder, 2, 0);
  if (told == 0) tensors.refuse_silent("heads", "--heads NH");
  if (all_neurons % told != 0) {
    base::fail(base::ErrorKind::usage,
               "--heads {}: '{}{}' of '{}' has {} neurons, no multiple of it", told, tensors.prefix,
               encoder, tensors.path, all_neurons);
  }
  return {.heads = told, .neurons = all_neurons / told};
}

class BdhFamily final : public Family {
 public:
  std::unique_ptr<Model> make(const ModelConfig& config, std::int64_t seq_len,
                              const TensorPlace& place,
                              const Computation& computation) const override {
    return make_bdh(sizes_of(config), seq_len, place, computation);
  }

  std::vector<mesh::Subgroup> tensor_subgroups(const ModelConfig& config,
                                               std::int64_t tp) const override {
    return bdh::tensor_subgroups(sizes_of(config), tp);
  }

  bool recognises(const TensorShapes& tensors) const override {
    return tensors.has("encoder") || tensors.has("levels.0.encoder");
  }

  // All sizes show in the weights except the number of tied levels, and in storage heads.
  ModelConfig read_sizes(const TensorShapes& tensors, const UserHints& told) const override {
    const std::int64_t untied = count_untied_levels(tensors);
    const std::string encoder = untied > 0 ? "levels.0.encoder" : "encoder";
    const auto from_export = [&]() -> Settings {
      return {.heads = tensors.size(encoder, 3, 0), .neurons = tensors.size(encoder, 3, 2)};
    };
    return {.levels = untied > 0 ? untied : told.levels,
            .width = tensors.size("embed.weight", 2, 1),
            .own = tensors.is_storage
                       ? told_heads(tensors, encoder, told.own.of<Settings>().told_heads)
                       : from_export(),
            .vocab = tensors.size("embed.weight", 2, 0),
            .tie_levels = untied == 0};
  }

  void check_own(const ModelConfig& found, const UserHints& told,
                 std::string_view path) const override {
    check_told(path, "--heads", told.own.of<Settings>().told_heads, found.own.of<Settings>().heads);
  }

  std::vector<ReportedValue> reported_values(const ModelConfig& config, std::int64_t rows,
                                             std::int64_t length) const override {
    const std::vector<std::int64_t> stream{rows, length, config.width};
    const std::int64_t heads = config.own.of<Settings>().heads;
    std::vector<ReportedValue> values{{"act.embed", stream}};
    for (std::int64_t level = 0; level < config.levels; ++level) {
      const std::string prefix = fmt::format("act.layer{}", level);
      values.push_back({prefix + ".out", stream});
      values.push_back({prefix + ".ykv", {rows, heads, length, config.width}, level == 0});
      values.push_back({prefix + ".ymlp", stream, level == 0});
    }
    return values;
  }

  std::int64_t max_positions() const override { return kMaxPositions; }

  // The state of each level, as BdhRecurrent keeps it: at least float32.
  std::int64_t generator_bytes(const ModelConfig& config, at::ScalarType dtype) const override {
    const BdhSizes sizes = sizes_of(config);
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    return param::bytes_of(config.levels * sizes.all_neurons() * sizes.width, wide);
  }

  std::unique_ptr<Generator> make_generator(const ModelConfig& config,
                                            const param::Arena& weights) const override {
    return std::make_unique<BdhRecurrent>(sizes_of(config), weights);
  }
};

}  // namespace

const Family& family() {
  static const BdhFamily kFamily;
  return kFamily;
}

}  // namespace dtrain::model::bdh
