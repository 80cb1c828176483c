#include "dtrain/parallel/action.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "support/action_ids.h"

namespace dtrain::parallel::action_test {
namespace {

using testing::operator""_b;
using testing::operator""_m;

// One letter and a microbatch for each action; small letters are events.
std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    const char letter = "FBSRSRbeghl"[static_cast<int>(action.kind)];
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", letter, action.microbatch.value());
  }
  return text;
}

TEST_CASE("Each microbatch's gradients are a sum of their own, and only the last one has no end") {
  const std::vector<Action> step = with_events(sequential_actions(2, 3));
  CHECK(text_of(step) ==
        "b0 F0 F0 g0 B0 B0 h0 e0 "
        "b1 F1 F1 g1 B1 B1 h1 e1 "
        "b2 F2 F2 l2 g2 B2 B2 e2");
  CHECK(num_gradient_sums(step) == 3);
}

TEST_CASE("A microbatch lives from its first message to its last") {
  const std::vector<Action> stage{
      {ActionKind::recv_activation, 0_b, 0_m}, {ActionKind::recv_activation, 0_b, 1_m},
      {ActionKind::forward, 0_b, 0_m},         {ActionKind::forward, 0_b, 1_m},
      {ActionKind::backward, 0_b, 0_m},        {ActionKind::send_gradient, 0_b, 0_m},
      {ActionKind::backward, 0_b, 1_m},        {ActionKind::send_gradient, 0_b, 1_m}};
  CHECK(text_of(with_events(stage)) == "b0 R0 b1 R1 F0 F1 l1 g0 B0 h0 S0 e0 g1 B1 S1 e1");
}

TEST_CASE("Where backward passes alternate between microbatches there is one sum of all") {
  std::vector<Action> stage;  // two chunks of one block
  for (const BlockId block : {0_b, 1_b}) {
    for (const MicrobatchId microbatch : {0_m, 1_m}) {
      stage.push_back({ActionKind::forward, block, microbatch});
    }
  }
  for (const BlockId block : {1_b, 0_b}) {
    for (const MicrobatchId microbatch : {0_m, 1_m}) {
      stage.push_back({ActionKind::backward, block, microbatch});
    }
  }
  const std::vector<Action> step = with_events(stage);
  CHECK(text_of(step) == "b0 F0 b1 F1 F0 F1 l1 g0 B0 B1 B0 e0 B1 e1");
  CHECK(num_gradient_sums(step) == 1);
}

}  // namespace
}  // namespace dtrain::parallel::action_test
