#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"
#include "support/action_ids.h"
#include "support/ids.h"
#include "support/messages.h"
#include "support/oracles/small_blocks.h"

namespace dtrain::model::bdh::tensor_slice_test {
namespace {

using testing::Names;
using testing::operator""_p;
using testing::operator""_b;

constexpr BdhSizes kSizes{.layers = 2, .width = 6, .heads = 4, .neurons = 12, .vocab = 16};

TEST_CASE("Up to the number of heads, ranks hold whole heads") {
  const BdhSlice slice = slice_of(kSizes, {.index = 1, .size = 2});
  CHECK(slice.heads == 2);
  CHECK(slice.neurons == 12);
  CHECK(slice.first_neuron == 24);
  CHECK(slice.ranks_per_head == 1);
  CHECK(slice.vocab == 16);
}

TEST_CASE("With more ranks than heads, consecutive ranks share a head's neurons, in whole pairs") {
  const BdhSlice slice = slice_of(kSizes, {.index = 5, .size = 8, .splits_vocab = true});
  CHECK(slice.heads == 1);
  CHECK(slice.neurons == 6);
  CHECK(slice.first_neuron == 30);
  CHECK(slice.head_slice().first == 6);
  CHECK(slice.ranks_per_head == 2);
  CHECK(slice.vocab == 2);
  CHECK(slice.first_token == 10);
}

TEST_CASE("The slices of all ranks cover each neuron and token exactly once") {
  for (const std::int64_t tp : {1, 2, 4, 8, 12, 24}) {
    std::int64_t next = 0;
    for (std::int64_t index = 0; index < tp; ++index) {
      const BdhSlice slice = slice_of(kSizes, {.index = index, .size = tp});
      CHECK(slice.first_neuron == next);
      CHECK(slice.first_neuron % 2 == 0);
      CHECK(slice.neurons % 2 == 0);
      next += slice.all_neurons();
    }
    CHECK(next == kSizes.all_neurons());
  }
}

TEST_CASE("Parts of a size that ranks do not divide differ by one entry, the longer ones first") {
  for (const std::int64_t whole : {8, 9, 257}) {
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
      CAPTURE(whole, ranks);
      std::int64_t next = 0;
      std::int64_t before = whole;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const TensorPart part = TensorCoordinate{.index = rank, .size = ranks}.part_of(whole);
        CHECK(part.begin == next);
        CHECK(part.count <= before);
        CHECK((part.count == whole / ranks || part.count == whole / ranks + 1));
        next += part.count;
        before = part.count;
      }
      CHECK(next == whole);
    }
  }
}

TEST_CASE("A vocabulary that tp does not divide is split into parts of other sizes") {
  BdhSizes sizes = kSizes;
  sizes.vocab = 17;
  const auto model = make_bdh(sizes, 8, {.index = 1, .size = 2, .splits_vocab = true});
  const param::ParameterSpec& embed = model->parameters.front();
  const param::ParameterSpec& head = model->parameters.back();
  CHECK(embed.shape == std::vector<std::int64_t>{8, 6});
  CHECK(embed.cut->begin == 9);
  CHECK(head.shape == std::vector<std::int64_t>{6, 8});
  CHECK(head.whole_shape() == std::vector<std::int64_t>{6, 17});
}

std::string refusal(const BdhSizes& sizes, const TensorCoordinate& place) {
  try {
    (void)slice_of(sizes, place);
  } catch (const base::Error& error) {
    CHECK(error.kind() == base::ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("A size that does not fit is rejected, and the message names valid ones") {
  CHECK_THAT(refusal(kSizes, {.size = 3}), Names("--tp 3", "--heads 4", "--tp 2 or 4"));
  CHECK_THAT(refusal(kSizes, {.size = 6}), Names("--tp 6", "--heads 4", "--tp 4 or 8"));
  // 12 neurons in 4 parts are 3 each, which would split a RoPE pair.
  CHECK_THAT(refusal(kSizes, {.size = 16}),
             Names("--tp 16", "--heads 4", "--neurons 12", "4 parts", "--tp 12 or 24"));
  CHECK_THAT(refusal(kSizes, {.size = 100}), Names("--tp 100", "--tp 24"));
  BdhSizes sizes = kSizes;
  sizes.vocab = 3;
  CHECK(refusal(sizes, {.size = 4}) == "accepted");
  CHECK_THAT(refusal(sizes, {.size = 4, .splits_vocab = true}),
             Names("--tp-vocab", "--vocab 3", "--tp 4"));
}

TEST_CASE("A rank's specs contain the slice of the whole that it holds") {
  const auto model = make_bdh(kSizes, 8, {.index = 5, .size = 8, .splits_vocab = true});
  const auto whole = make_bdh(kSizes, 8);
  REQUIRE(model->parameters.size() == whole->parameters.size());
  for (const param::ParameterId id : model->parameters.ids()) {
    const param::ParameterSpec& spec = model->parameters[id];
    CAPTURE(spec.name);
    const bool is_vocabulary = spec.name == "embed.weight" || spec.name == "lm_head";
    REQUIRE(spec.cut.has_value());
    CHECK(spec.cut->dim == (spec.name == "lm_head" ? 1 : 0));
    CHECK(spec.cut->begin == (is_vocabulary ? 10 : 30));
    CHECK(spec.num_elements() * 8 == whole->parameters[id].num_elements());
    CHECK(spec.whole_shape() == whole->parameters[id].shape);
    CHECK(spec.export_shape() == whole->parameters[id].export_shape());
    CHECK_FALSE(whole->parameters[id].cut.has_value());
  }
  CHECK(model->training_flops_per_token() == whole->training_flops_per_token());
  CHECK(model->table_values == whole->table_values / 2);
  const auto replicated = make_bdh(kSizes, 8, {.index = 1, .size = 2});
  CHECK_FALSE(replicated->parameters.front().cut.has_value());
}

TEST_CASE("A block rejects an axis other than the one it was made for") {
  const BdhSlice slice = slice_of(kSizes, {.index = 1, .size = 2});
  const TensorAxis one;
  CHECK_THROWS_AS(slice.check(one), base::Error);
  slice_of(kSizes, {}).check(one);
}

TEST_CASE("BDH declares one subgroup, the ranks that share a head") {
  const config::ModelConfig config{.heads = 4, .family = config::bdh::Settings{.neurons = 12}};
  for (const auto& [tp, sharing] : {std::pair{1, 1}, {4, 1}, {12, 3}}) {
    const std::vector<mesh::Subgroup> subgroups = model::tensor_subgroups(config, tp);
    REQUIRE(subgroups.size() == 1);
    CHECK(subgroups[kHeadSubgroup].size == sharing);
  }
  CHECK_THROWS_AS(model::tensor_subgroups(config, 5), base::Error);
}

TEST_CASE("Extracted blocks keep parameter ids and hold only the parameters they use") {
  const auto whole = testing::small_model({{}, {}, {}});
  const std::vector<BlockRange> ranges{{0_b, 1_b}, {2_b, 3_b}};
  const auto part = extract_blocks(testing::small_model({{}, {}, {}}), ranges);
  REQUIRE(part->blocks.size() == 2);
  CHECK(part->blocks.back()->parameters().front() == 2_p);
  CHECK(part->takes_tokens);
  CHECK_FALSE(part->gives_losses);
  REQUIRE(part->parameters.size() == whole->parameters.size());
  for (const param::ParameterId id : whole->parameters.ids()) {
    CHECK(part->parameters[id].name == whole->parameters[id].name);
    CHECK(part->parameters[id].is_held() == (id == 0_p || id == 2_p));
    CHECK(part->parameters[id].whole_shape() == whole->parameters[id].shape);
  }
}

TEST_CASE("A spec that is not held keeps the whole shape") {
  param::ParameterSpec spec;
  spec.shape = {4, 6};
  spec.cut = param::TensorCut{.dim = 1, .begin = 6, .whole = 12};
  const param::ParameterSpec elsewhere = spec.not_held();
  CHECK(elsewhere.num_elements() == 0);
  CHECK(elsewhere.whole_shape() == std::vector<std::int64_t>{4, 12});
}

}  // namespace
}  // namespace dtrain::model::bdh::tensor_slice_test
