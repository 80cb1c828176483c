#include "dtrain/data/ngram.h"

#include <algorithm>
#include <cmath>

#include "dtrain/base/error.h"
#include "dtrain/data/loader.h"

namespace dtrain::data {

namespace {

using base::ErrorKind;

constexpr std::size_t kBytes = 256;

std::size_t byte_of(std::int64_t token, const TokenFile& file) {
  if (token >= kByteVocab) {
    fail(ErrorKind::data,
         "data file '{}' holds token {}; n-gram baselines need byte tokens: prepare the text with "
         "`dtrain data prepare`",
         file.path(), token);
  }
  return static_cast<std::size_t>(token);
}

}  // namespace

NgramModel::NgramModel(const Samples& samples) {
  std::size_t num_contexts = 1;
  for (Order& order : orders_) {
    order.counts.resize(num_contexts * kBytes);
    order.contexts.resize(num_contexts);
    num_contexts *= kBytes;
  }
  count(samples);
  for (Order& order : orders_) {
    for (std::size_t h = 0; h < order.contexts.size(); ++h) {
      for (const std::int64_t seen : std::span(order.counts).subspan(h * kBytes, kBytes)) {
        order.contexts[h].occurrences += seen;
        order.contexts[h].followers += seen > 0 ? 1 : 0;
      }
    }
  }
}

void NgramModel::count(const Samples& samples) {
  constexpr std::int64_t kChunk = 64 * 1024;
  std::vector<std::int64_t> tokens;
  std::int64_t num_seen = 0;
  std::size_t history = 0;  // the last two bytes, as a base-256 number
  for (std::int64_t begin = samples.range().begin; begin < samples.range().end; begin += kChunk) {
    tokens.resize(static_cast<std::size_t>(std::min(kChunk, samples.range().end - begin)));
    samples.file().copy(begin, tokens);
    for (const std::int64_t token : tokens) {
      const std::size_t next = byte_of(token, samples.file());
      ++orders_[0].counts[next];
      if (num_seen >= 1) ++orders_[1].counts[history % kBytes * kBytes + next];
      if (num_seen >= 2) ++orders_[2].counts[history * kBytes + next];
      history = history % kBytes * kBytes + next;
      ++num_seen;
    }
  }
}

double NgramModel::probability(std::span<const std::int64_t> context, std::int64_t next) const {
  DTRAIN_CHECK(context.size() < orders_.size(), "{} bytes of context", context.size());
  double result = 1.0 / static_cast<double>(kBytes);
  for (std::size_t length = 0; length <= context.size(); ++length) {
    std::size_t h = 0;
    for (const std::int64_t byte : context.last(length)) {
      h = h * kBytes + static_cast<std::size_t>(byte);
    }
    const Context& seen = orders_[length].contexts[h];
    if (seen.occurrences == 0) continue;
    const std::int64_t hits = orders_[length].counts[h * kBytes + static_cast<std::size_t>(next)];
    result = (static_cast<double>(hits) + static_cast<double>(seen.followers) * result) /
             static_cast<double>(seen.occurrences + seen.followers);
  }
  return result;
}

NgramLoss evaluate_ngrams(const Split& split, std::int64_t num_sequences) {
  const Samples& validation = split.validation;
  if (validation.size() < 1) {
    fail(ErrorKind::data, "data file '{}' has no validation sample; set --val-fraction",
         split.train.first().file().path());
  }
  if (split.train.sources().size() > 1) {
    fail(ErrorKind::usage, "n-gram baselines take one data file; give one with --data");
  }
  const EvaluationSequences sequences(validation, num_sequences);
  const NgramModel model(split.train.first());
  const auto length = static_cast<std::size_t>(validation.seq_len());
  std::vector<std::int64_t> inputs(length);
  std::vector<std::int64_t> targets(length);
  NgramLoss loss;
  for (std::int64_t number = 0; number < sequences.size(); ++number) {
    validation.copy(sequences.sample(number), inputs, targets);
    byte_of(inputs[0], validation.file());
    for (std::size_t t = 0; t < length; ++t) {
      const std::span<const std::int64_t> seen(inputs.data(), t + 1);
      byte_of(targets[t], validation.file());
      loss.bigram -= std::log(model.probability(seen.last(1), targets[t]));
      loss.trigram -=
          std::log(model.probability(seen.last(std::min<std::size_t>(2, t + 1)), targets[t]));
      ++loss.num_targets;
    }
  }
  loss.bigram /= static_cast<double>(loss.num_targets);
  loss.trigram /= static_cast<double>(loss.num_targets);
  return loss;
}

}  // namespace dtrain::data
