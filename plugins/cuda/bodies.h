// The per-thread code of our CUDA kernels, written as plain functions of an index. A test runs them
// on the CPU too, and compares them with the CPU operators.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/pack.h"
#include "dtrain/base/device_function.h"
#include "dtrain/base/philox.h"
#include "dtrain/model/bdh/rope_element.h"
#include "dtrain/model/dropout_element.h"
#include "dtrain/optim/update_element.h"

namespace dtrain::cuda {

/// Division by a loop-invariant divisor through multiplication and shift, since GPUs have no
/// integer division instruction.
///
/// Source: Granlund, Montgomery, Division by Invariant Integers using Multiplication (PLDI 1994).
class Divider {
 public:
  struct Result {
    std::uint32_t quotient;
    std::uint32_t remainder;
  };

  /// divisor: 1 to 2^32 - 1.
  explicit Divider(std::int64_t divisor)
      : divisor_(static_cast<std::uint32_t>(divisor)),
        shift_(bits_of(divisor_ - 1)),
        factor_(static_cast<std::uint32_t>(
            (((std::uint64_t{1} << shift_) - divisor_) << 32) / divisor_ + 1)) {}

  /// number: 0 to 2^32 - 1.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION Result operator()(std::int64_t number) const {
    const auto low = static_cast<std::uint32_t>(number);
    const std::uint64_t high = std::uint64_t{low} * factor_ >> 32;
    const auto quotient = static_cast<std::uint32_t>((high + low) >> shift_);
    return {quotient, low - quotient * divisor_};
  }
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t divisor() const { return divisor_; }

 private:
  static std::uint32_t bits_of(std::uint32_t number) {
    std::uint32_t bits = 0;
    for (; number != 0; number >>= 1) ++bits;
    return bits;
  }

  std::uint32_t divisor_;
  std::uint32_t shift_;
  std::uint32_t factor_;
};

/// The kept neurons of a block, as a bit mask: bit h of byte c belongs to the 16-bit half h of
/// counter c's random words.
struct alignas(8) KeptBits {
  std::uint8_t of_counter[8];
};

/// Dropout. index: number of a neuron block, over all rows. Eight threads share a block: each
/// computes one counter, which covers strided neurons, then applies the mask to contiguous neurons.
template <typename scalar_t>
struct DropoutBody {
  static constexpr std::uint32_t kCounters = 8;  ///< per block of neurons

  model::DropoutRows rows;
  std::int64_t num_rows;
  base::PhiloxKey key;
  model::DropRule<scalar_t> rule;
  const scalar_t* in;
  scalar_t* out;
  Divider by_blocks{blocks_of_row()};
  Divider by_positions{rows.positions};
  Divider by_samples{rows.samples};

  /// The maximum number of blocks that a row overlaps.
  [[nodiscard]] std::int64_t blocks_of_row() const {
    const bool is_aligned =
        rows.first_neuron % model::kDropoutBlock == 0 && rows.neurons % model::kDropoutBlock == 0;
    return rows.neurons / model::kDropoutBlock + (is_aligned ? 0 : 2);
  }
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t size() const {
    return num_rows * by_blocks.divisor();
  }

  /// A block of neurons of one row.
  struct Block {
    std::int64_t row;
    std::int64_t number;  ///< index over all heads
    std::int64_t first;   ///< its first neuron in the row; negative if the row begins in the block
    model::DropoutRow words;
  };
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION Block block_at(std::int64_t index) const {
    const auto [row, block_of_row] = by_blocks(index);
    const auto [plane, position] = by_positions(row);
    const auto [head, sample] = by_samples(plane);
    const std::int64_t first = rows.first_of(head);
    const std::int64_t number = first / model::kDropoutBlock + block_of_row;
    return {row, number, number * model::kDropoutBlock - first, rows.counters_of(sample, position)};
  }

  /// The kept neurons of one counter, as a bit mask: bit h belongs to the 16-bit half h of its
  /// random words.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::uint8_t kept(const Block& block,
                                                         std::uint32_t counter) const {
    const auto random = base::philox(
        {static_cast<std::uint32_t>(block.number) * kCounters + counter, block.words.position,
         block.words.sample_low, block.words.level_and_sample_high},
        key);
    std::uint32_t bits = 0;
    for (std::uint32_t half = 0; half < 8; ++half) {
      const std::uint32_t word = random[half / 2];
      const bool stays = model::is_kept(half % 2 == 0 ? word & 0xFFFF : word >> 16, rule);
      bits |= static_cast<std::uint32_t>(stays) << half;
    }
    return static_cast<std::uint8_t>(bits);
  }

  /// Applies the mask to the packs of one of the block's threads.
  DTRAIN_DEVICE_FUNCTION void drop(const Block& block, std::uint32_t thread, KeptBits kept) const {
    constexpr std::uint32_t kValues = kPack<scalar_t>;
    for (std::uint32_t i = 0; i < model::kDropoutBlock / kCounters / kValues; ++i) {
      const std::uint32_t of_block = (i * kCounters + thread) * kValues;
      const std::int64_t neuron = block.first + of_block;
      const std::int64_t at = block.row * rows.neurons + neuron;
      const std::uint64_t bits =
          std::bit_cast<std::uint64_t>(kept) >> (of_block % 8 * 8 + of_block / 8);
      Pack<scalar_t> pack = load(in + at, rows.neurons - neuron, -neuron);
      for (std::uint32_t k = 0; k < kValues; ++k) {
        pack.values[k] = model::dropped(pack.values[k], (bits >> 8 * k & 1) != 0, rule);
      }
      store(pack, out + at, rows.neurons - neuron, -neuron);
    }
  }
};

/// RoPE. index: number of a pack in kRows rows, which share their rotations.
template <typename scalar_t>
struct RopeBody {
  static constexpr std::int64_t kRows = 4;  ///< rows per read of the table

  const scalar_t* in;
  scalar_t* out;
  const float* table;
  std::int64_t rows;
  std::int64_t length;  ///< values per row, over all positions; also the table's size
  float direction;
  Divider by_packs{packs_of(kPack<scalar_t>, length)};

  [[nodiscard]] std::int64_t size() const {
    return (rows + kRows - 1) / kRows * by_packs.divisor();
  }

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    constexpr int kValues = kPack<scalar_t>;
    const auto [group, pack] = by_packs(index);
    const std::int64_t first = std::int64_t{pack} * kValues;
    const std::int64_t left = length - first;
    const Pack<float> rotations[] = {load(table + first, left),
                                     load(table + first + kValues / 2, left - kValues / 2)};
    Pack<scalar_t> rotated[kRows];
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::int64_t row = group * kRows + i;
      if (row < rows) rotated[i] = load(in + row * length + first, left);
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      const std::int64_t row = group * kRows + i;
      if (row >= rows) return;
      for (int k = 0; k < kValues; k += 2) {
        scalar_t* pair = rotated[i].values + k;
        model::bdh::rotate_pair(pair, pair, rotations[2 * k / kValues].values + k % (kValues / 2),
                                direction);
      }
      store(rotated[i], out + row * length + first, left);
    }
  }
};

/// AdamW. index: number of a pack. Values that only the device knows are read by each thread.
template <typename T>
struct AdamWBody {
  optim::AdamWSettings settings;
  const float* num_updates;
  const double* learning_rate;
  const bool* may_update;
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* first;
  T* second;

  [[nodiscard]] std::int64_t size() const { return packs_of(kPack<T>, count); }

  /// The body with the factors that all elements share.
  struct Prepared {
    AdamWBody body;
    optim::AdamWFactors<T> factors;
    bool may_update;

    DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
      if (!may_update) return;
      const std::int64_t at = index * kPack<T>;
      const std::int64_t left = body.count - at;
      const Pack<T> gradient = load(body.gradient + at, left);
      Pack<T> weight = load(body.weight + at, left);
      Pack<T> first = load(body.first + at, left);
      Pack<T> second = load(body.second + at, left);
      for (int i = 0; i < kPack<T>; ++i) {
        optim::adamw_element(factors, gradient.values[i], weight.values[i], first.values[i],
                             second.values[i]);
      }
      store(weight, body.weight + at, left);
      store(first, body.first + at, left);
      store(second, body.second + at, left);
    }
  };
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION Prepared prepared() const {
    return {
        *this,
        optim::adamw_factors<T>(settings, *learning_rate, static_cast<std::int64_t>(*num_updates)),
        *may_update};
  }
};

/// SGD. index: number of a pack.
template <typename T>
struct SgdBody {
  double momentum;
  double weight_decay;
  const double* learning_rate;
  const bool* may_update;
  std::int64_t count;
  T* weight;
  const T* gradient;
  T* buffer;  ///< null without momentum

  [[nodiscard]] std::int64_t size() const { return packs_of(kPack<T>, count); }

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    if (!*may_update) return;
    const optim::SgdFactors<T> factors{.decay = static_cast<T>(weight_decay),
                                       .momentum = static_cast<T>(momentum),
                                       .rate = static_cast<T>(*learning_rate)};
    const std::int64_t at = index * kPack<T>;
    const std::int64_t left = count - at;
    const Pack<T> gradients = load(gradient + at, left);
    Pack<T> weights = load(weight + at, left);
    if (buffer == nullptr) {
      for (int i = 0; i < kPack<T>; ++i) {
        optim::sgd_element(factors, gradients.values[i], weights.values[i]);
      }
    } else {
      Pack<T> buffers = load(buffer + at, left);
      for (int i = 0; i < kPack<T>; ++i) {
        optim::momentum_element(factors, gradients.values[i], weights.values[i], buffers.values[i]);
      }
      store(buffers, buffer + at, left);
    }
    store(weights, weight + at, left);
  }
};

/// Scaling. index: number of a pack.
template <typename T>
struct ScaleBody {
  const double* factor;
  std::int64_t count;
  T* values;

  [[nodiscard]] std::int64_t size() const { return packs_of(kPack<T>, count); }

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    if (*factor == 1.0) return;
    const std::int64_t at = index * kPack<T>;
    Pack<T> pack = load(values + at, count - at);
    for (T& value : pack.values) value = value * static_cast<T>(*factor);
    store(pack, values + at, count - at);
  }
};

/// Consecutive slots that are added in order: one row of norm_squares's table.
struct SlotRange {
  std::int64_t first;
  std::int64_t count;
};

}  // namespace dtrain::cuda
