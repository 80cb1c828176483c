#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "support/local_ranks.h"
#include "support/messages.h"

namespace dtrain::testing::comm_agreement_test {
namespace {

using comm::NamedValue;
using comm::World;

/// The message each rank gets; empty for none.
std::vector<std::string> messages(
    std::int64_t size, const std::function<std::vector<NamedValue>(std::int64_t)>& values_of_rank) {
  std::vector<std::string> result(static_cast<std::size_t>(size));
  on_threads(size, [&](World& world) {
    const auto group = group_of_all(world);
    try {
      comm::check_agreement(*group, values_of_rank(world.rank()));
    } catch (const base::Error& error) {
      result[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return result;
}

TEST_CASE("Ranks that agree pass") {
  for (const auto& message : messages(3, [](std::int64_t) {
         return std::vector<NamedValue>{{"model.width", "64"}, {"model.heads", ""}};
       })) {
    CHECK(message.empty());
  }
}

TEST_CASE("The first entry that differs is named on every rank, with both values") {
  const auto all = messages(4, [](std::int64_t rank) {
    return std::vector<NamedValue>{{"model.name", "bdh"},
                                   {"model.width", rank == 2 ? "128" : "64"},
                                   {"train.seed", rank == 1 ? "7" : "8"}};
  });
  for (const auto& message : all) {
    CHECK_THAT(message, Names("ranks 0 and 2", "model.width", "64 on rank 0", "128 on rank 2"));
  }
}

TEST_CASE("A list that is longer or has other names differs") {
  const auto longer = messages(2, [](std::int64_t rank) {
    std::vector<NamedValue> values{{"a", "1"}};
    if (rank == 1) values.emplace_back("b", "2");
    return values;
  });
  for (const auto& message : longer) CHECK_THAT(message, Names("b", "nothing", 2, "rank 1"));
  const auto renamed = messages(2, [](std::int64_t rank) {
    return std::vector<NamedValue>{{rank == 0 ? "a" : "b", "1"}};
  });
  for (const auto& message : renamed) CHECK_THAT(message, Names("a", "b = 1", "rank 1"));
}

}  // namespace
}  // namespace dtrain::testing::comm_agreement_test
