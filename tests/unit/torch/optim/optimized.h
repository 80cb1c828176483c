// Four parameters under an optimizer, for the tests of its rule.
#pragma once

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/optim/optimizer.h"
#include "support/ids.h"
#include "support/rounding.h"
#include "support/specs.h"
#include "support/values.h"

namespace dtrain::optim {

using testing::spec;
using testing::operator""_p;
using testing::operator""_s;

// Neighbours that decay alike, one that does not, and sizes that leave padding.
inline const param::ParameterSpecs kSpecs{spec("a", 100, true), spec("b", 64, true),
                                          spec("c", 7, false), spec("d", 130, true)};

inline const at::Tensor kMayUpdate = at::scalar_tensor(true, at::kBool);

// Weights, gradients and their optimizer.
template <typename Rule, typename Options>
struct Optimized {
  explicit Optimized(const Options& options, at::ScalarType dtype = at::kDouble,
                     const std::vector<param::ParameterId>& frozen = {})
      : layout(kSpecs, {.frozen = frozen}),
        weights(layout, dtype, param::private_memory),
        gradients(layout, dtype, param::private_memory),
        optimizer({layout, kSpecs, 0_s, dtype, param::private_memory}, options) {
    fill(weights, 0, 1);
  }

  void fill(param::Arena& arena, std::int64_t which, double scale) {
    for (const param::ParameterId id : layout.parameters()) {
      const at::Tensor view = arena.view(id);
      view.copy_(testing::values_of(which * 10 + id.value(), view.numel(), at::kDouble) * scale *
                 1e-5);
    }
  }

  param::ArenaLayout layout;
  param::Arena weights;
  param::Arena gradients;
  Rule optimizer;
};

// 2, 4 and 8 shards, three updates each.
template <typename Rule, typename Options>
void check_shards(const Options& options, const std::vector<param::ParameterId>& frozen) {
  using Run = Optimized<Rule, Options>;
  Run whole(options, at::kFloat, frozen);
  for (const std::int64_t count : {2, 4, 8}) {
    Run reference(options, at::kFloat, frozen);
    const param::ArenaLayout layout(
        kSpecs, {.unit_begins = {0_p, 3_p}, .num_shards = count, .frozen = frozen});
    for (std::int64_t step = 1; step <= 3; ++step) {
      reference.fill(reference.gradients, step, 3);
      reference.optimizer.step(reference.weights, reference.gradients, 0.1, kMayUpdate);
    }
    for (const param::ShardId shard : base::first_ids<param::ShardId>(count)) {
      INFO("shard " << shard.value() << " of " << count);
      param::Arena weights(layout, at::kFloat, param::private_memory);
      param::Arena gradients(layout, at::kFloat, param::private_memory);
      const auto take = [&](const param::Arena& from, const param::Arena& to) {
        for (const param::ParameterId id : kSpecs.ids()) to.view(id).copy_(from.view(id));
      };
      take(whole.weights, weights);
      Rule optimizer({layout, kSpecs, shard, at::kFloat, param::private_memory}, options);
      for (std::int64_t step = 1; step <= 3; ++step) {
        whole.fill(whole.gradients, step, 3);
        take(whole.gradients, gradients);
        optimizer.step(weights, gradients, 0.1, kMayUpdate);
      }
      for (const param::ParameterId id : kSpecs.ids()) {
        const param::ElementRange all = layout.range(id);
        for (const param::ElementRange part : layout.owned_by(shard)) {
          const param::ElementRange own = common(all, part);
          if (own.is_empty()) continue;
          CHECK(testing::same_bits(weights.slice(own), reference.weights.view(id).narrow(
                                                           0, own.begin - all.begin, own.size())));
        }
      }
    }
  }
}

}  // namespace dtrain::optim
