#include "dtrain/data/loader.h"

#include <algorithm>
#include <set>

#include "support/temp_folder.h"

namespace dtrain::data::loader_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::TempFolder;

/// num_samples samples of 4 tokens; the first token of sample i is i, the others are at least 200.
Samples numbered_samples(const TempFolder& folder, int num_samples) {
  std::string text;
  for (int i = 0; i < num_samples; ++i) {
    text += {static_cast<char>(i), static_cast<char>(201), static_cast<char>(202),
             static_cast<char>(203)};
  }
  text.front() = text.size() > 4
                     ? '\x7f'
                     : text.front();  // sample 0 begins with 127, because a NUL is not text
  text.push_back('.');
  return open_split({.train = folder.write("t", text), .seq_len = 4}).train.first();
}

std::vector<std::int64_t> numbers_in(const std::vector<Batch>& batches) {
  std::vector<std::int64_t> numbers;
  for (const Batch& batch : batches) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(batch.num_sequences); ++row) {
      // In a later epoch samples are shifted, and contain the first token of the next one.
      const auto begin = batch.inputs.begin() + static_cast<std::ptrdiff_t>(4 * row);
      const std::int64_t number = *std::min_element(begin, begin + 4);
      numbers.push_back(number == 127 ? 0 : number);
    }
  }
  return numbers;
}

TEST_CASE("A batch holds consecutive samples of the order, targets shifted by one") {
  const TempFolder folder;
  const Samples samples = numbered_samples(folder, 50);
  Loader loader(
      samples, {.microbatch = 3, .assignment = {.grad_accum = 2}, .seed = 9, .start_position = 12});
  const std::vector<Batch> batches = loader.next();
  REQUIRE(batches.size() == 2);
  CHECK(batches[0].first_sample == 12);
  CHECK(batches[1].first_sample == 15);
  const SampleOrder order(50, 9);
  std::vector<std::int64_t> expected;
  for (std::int64_t g = 12; g < 18; ++g) expected.push_back(order(g));
  CHECK(numbers_in(batches) == expected);
  for (const Batch& batch : batches) {
    CHECK(batch.num_sequences == 3);
    CHECK(batch.length == 4);
    REQUIRE(batch.inputs.size() == 12);
    REQUIRE(batch.targets.size() == 12);
    for (std::size_t i = 0; i < 12; ++i) {
      if (i % 4 != 3) CHECK(batch.targets[i] == batch.inputs[i + 1]);
    }
  }
}

TEST_CASE("Ranks and accumulation divide the same sequence of samples") {
  const TempFolder folder;
  const Samples samples = numbered_samples(folder, 40);
  std::vector<std::int64_t> expected;
  Loader whole(samples, {.microbatch = 8, .seed = 5});
  for (int step = 0; step < 12; ++step) {
    const auto numbers = numbers_in(whole.next());
    expected.insert(expected.end(), numbers.begin(), numbers.end());
  }
  const std::int64_t dp_size = GENERATE(1, 2, 4);
  const std::int64_t grad_accum = GENERATE(1, 2);
  const std::int64_t microbatch = 8 / dp_size / grad_accum;
  std::vector<std::vector<std::int64_t>> by_rank;
  for (std::int64_t rank = 0; rank < dp_size; ++rank) {
    Loader loader(samples,
                  {.microbatch = microbatch,
                   .assignment = {.rank = rank, .num_ranks = dp_size, .grad_accum = grad_accum},
                   .seed = 5});
    std::vector<std::int64_t> numbers;
    for (int step = 0; step < 12; ++step) {
      const auto batches = loader.next();
      CHECK(batches.front().first_sample == 8 * step + rank * microbatch * grad_accum);
      const auto more = numbers_in(batches);
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    by_rank.push_back(numbers);
  }
  std::vector<std::int64_t> together;
  const auto per_rank = static_cast<std::ptrdiff_t>(8 / dp_size);
  for (std::ptrdiff_t step = 0; step < 12; ++step) {
    for (const auto& numbers : by_rank) {
      const auto begin = numbers.begin() + step * per_rank;
      together.insert(together.end(), begin, begin + per_rank);
    }
  }
  CHECK(together == expected);
}

TEST_CASE(
    "Each epoch visits every sample once, even if a batch spans two; later epochs are shifted") {
  const TempFolder folder;
  Loader loader(numbered_samples(folder, 25), {.microbatch = 10, .seed = 1});
  std::vector<std::int64_t> numbers;
  for (int step = 0; step < 5; ++step) {
    const auto more = numbers_in(loader.next());
    numbers.insert(numbers.end(), more.begin(), more.end());
  }
  const std::set<std::int64_t> first(numbers.begin(), numbers.begin() + 25);
  const std::set<std::int64_t> second(numbers.begin() + 25, numbers.end());
  CHECK(first.size() == 25);
  // The first token of sample 0 precedes the first shifted sample.
  REQUIRE(SampleOrder(25, 1).shift(25, 4) > 0);
  CHECK(second.size() == 24);
  CHECK(*second.begin() == 1);
  CHECK(*second.rbegin() == 24);
}

TEST_CASE("A mixture draws from its files by share, in any layout and after a resume") {
  const TempFolder folder;
  const TempFolder other;
  const Mixture mixture({{numbered_samples(folder, 40), 3}, {numbered_samples(other, 20), 1}});
  const auto numbers_of = [&](LoaderOptions options, int steps) {
    options.seed = 5;
    Loader loader(mixture, options);
    std::vector<std::int64_t> numbers;
    for (int step = 0; step < steps; ++step) {
      const auto more = numbers_in(loader.next());
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return numbers;
  };
  const auto whole = numbers_of({.microbatch = 8}, 6);
  const auto resumed = numbers_of({.microbatch = 8, .start_position = 16}, 4);
  CHECK(std::vector(whole.begin() + 16, whole.end()) == resumed);
  // Two ranks, microbatches of four: rank 0 has the first half of each batch.
  const auto half = numbers_of({.microbatch = 4, .assignment = {.num_ranks = 2}}, 6);
  for (std::size_t i = 0; i < half.size(); ++i) CHECK(half[i] == whole[i / 4 * 8 + i % 4]);
  // Oracle: consecutive sources, each in its own order.
  const SourceOrder sources(std::vector<double>{3, 1});
  const SampleOrder orders[] = {SampleOrder(40, 5), SampleOrder(20, 5)};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto place = sources(static_cast<std::int64_t>(i));
    CHECK(whole[i] == orders[place.source](place.consumed));
  }
}

TEST_CASE("An error of the prefetch thread is rethrown by every call of next") {
  const TempFolder folder;
  std::string tokens(400, '\x01');
  const auto header = encode_token_header({.vocab = 100, .num_tokens = 400});
  const std::string path = folder.write(
      "t", std::string(reinterpret_cast<const char*>(header.data()), header.size()) + tokens);
  const Split split = open_split({.train = path, .seq_len = 4, .vocab = 100});
  // The file changes while open: every token is now outside the vocabulary.
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(kTokenHeaderBytes)
      .write(std::string(400, '\x65').c_str(), 400);
  Loader loader(split.train, {.microbatch = 2});
  for (int call = 0; call < 2; ++call) {
    CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = loader.next(); }),
               Contains("token 101"));
  }
}

TEST_CASE("A loader can be destroyed at any time") {
  const TempFolder folder;
  const Samples samples = numbered_samples(folder, 20);
  for (int i = 0; i < 200; ++i) {
    Loader loader(samples, {.microbatch = 1 + i % 7, .assignment = {.grad_accum = 1 + i % 3}});
    for (int step = 0; step < i % 4; ++step) std::ignore = loader.next();
  }
}

TEST_CASE("Evaluation sequences are spread evenly over the text for any batch size") {
  const TempFolder folder;
  const Samples samples = numbered_samples(folder, 11);
  const auto numbers = [&](std::int64_t count, std::int64_t batch_size) {
    const EvaluationSequences sequences(samples, count);
    std::vector<std::int64_t> found;
    for (std::int64_t first = 0; first < sequences.size(); first += batch_size) {
      const std::int64_t rows = std::min(batch_size, sequences.size() - first);
      const Batch batch = sequences.read(first, rows);
      CHECK(batch.first_sample == first);
      CHECK(batch.num_sequences == rows);
      const auto more = numbers_in({batch});
      found.insert(found.end(), more.begin(), more.end());
    }
    CHECK(sequences.tokens() == static_cast<std::int64_t>(found.size()) * samples.seq_len());
    return found;
  };
  using Numbers = std::vector<std::int64_t>;
  for (const std::int64_t batch_size : {1, 2, 3, 20}) {
    CHECK(numbers(1, batch_size) == Numbers{0});
    CHECK(numbers(4, batch_size) == Numbers{0, 2, 5, 8});
    CHECK(numbers(10, batch_size) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(numbers(11, batch_size) == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK(numbers(std::int64_t{1} << 62, batch_size) == numbers(11, batch_size));
  }
}

}  // namespace
}  // namespace dtrain::data::loader_test
