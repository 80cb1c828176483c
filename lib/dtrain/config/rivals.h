// Mutually exclusive settings: one that a later layer gives replaces an inherited one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/resolve.h"
#include "dtrain/config/schema.h"

namespace dtrain::config {

/// A file or the flags, applied over the files (or the run) below.
class Layer {
 public:
  /// below:  the settings before this layer, which must outlive it.
  /// given:  what it sets.
  /// config: below with this layer applied; rivals are reset there.
  Layer(const Config& below, std::span<const Setting* const> given, Config& config)
      : below_(below), given_(given), config_(config) {}

  [[nodiscard]] const Config& below() const { return below_; }
  [[nodiscard]] Config& config() { return config_; }
  [[nodiscard]] bool gives(std::string_view key) const;
  /// True if a layer below set it to another value than its default and this layer does not set it.
  [[nodiscard]] bool inherits(std::string_view key) const;
  /// Resets an inherited setting to its default; no-op otherwise. winner: the key that replaces it.
  void reset(std::string_view key, std::string_view winner);
  /// Records that `winner` has changed an inherited setting to its present value.
  void note_change(std::string_view key, std::string_view winner);

  /// "--steps 5 replaces --epochs 2, --decay-steps 9", one line per winner.
  [[nodiscard]] std::vector<std::string> replaced() const;

 private:
  struct Replaced {
    std::string_view winner;
    std::string rivals;
  };

  void add(std::string_view winner, const std::string& rival);

  const Config& below_;
  std::span<const Setting* const> given_;
  Config& config_;
  std::vector<Replaced> replaced_;
};

/// Resets inherited settings that the layer's settings exclude. Two exclusive settings of one layer
/// stay, and resolve() rejects them.
void drop_rivals(Layer& layer);

/// Likewise for layouts: a new strategy drops the settings of the inherited
/// one, and a setting of another strategy selects that strategy.
void drop_rival_layouts(Layer& layer);

/// Resets an inherited microbatch or accumulation that does not divide the layer's --global-batch
/// on the ranks of `launch`.
///
/// Throws: Error{usage} as resolve_layout.
void drop_rival_batch(Layer& layer, const Launch& launch);

/// True if each rank's share of the global batch is a whole number of such microbatches, at least
/// one per stage.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] bool fits_ranks(std::int64_t microbatch, const Config& config, const Launch& launch);

}  // namespace dtrain::config
