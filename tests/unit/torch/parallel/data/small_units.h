// Shared by tests of stores and reducers: small parameters, three units, ranks of a data axis.
#pragma once

#include <cstdint>
#include <set>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "support/action_ids.h"
#include "support/ids.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::parallel {

using testing::expect;
using testing::same_bits;
using testing::spec;
using testing::values_of;
using testing::operator""_m;
using testing::operator""_p;
using testing::operator""_u;

/// A step of three blocks with one unit each.
inline UnitSchedule schedule_of(std::int64_t num_microbatches, bool keeps_shards,
                                const std::set<param::UnitId>& frozen = {}) {
  const UnitUses uses{.of_block = {{0_u}, {1_u}, {2_u}}, .frozen = frozen};
  return make_unit_schedule(sequential_actions(3, num_microbatches), uses,
                            {.reduce_every_microbatch = keeps_shards});
}

/// Neighbouring ranks share one copy of the state: with two shards, ranks 0 and 1, and ranks 2 and
/// 3.
inline mesh::MeshGroups groups_of(comm::World& world, std::int64_t shard_size) {
  return {world, mesh::DeviceMesh({{mesh::Axis::dp, world.size()}}), {.shard_size = shard_size}};
}

}  // namespace dtrain::parallel
