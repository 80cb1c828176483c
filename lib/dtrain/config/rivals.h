// Settings that exclude each other: one that a later layer gives replaces one that is inherited.
#pragma once

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
  /// True where a layer below set it to something else than its default, and this one does not.
  [[nodiscard]] bool inherits(std::string_view key) const;
  /// Gives an inherited setting its default again; no-op otherwise. winner: the key that replaces
  /// it.
  void reset(std::string_view key, std::string_view winner);
  /// Notes that `winner` has changed an inherited setting to its present value.
  void note_change(std::string_view key, std::string_view winner);

  /// "--steps 5 takes the place of --epochs 2, --decay-steps 9", one for each winner.
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

/// Resets what is inherited and cannot stand beside the layer's settings: the layer wins. Two rivals
/// of one layer stay, and resolve() refuses them.
void drop_rivals(Layer& layer);

/// The same for a layout (rival_layouts.cpp): another strategy drops what belongs to the inherited
/// one, and a setting of another strategy brings that strategy.
void drop_rival_layouts(Layer& layer);

/// Resets an inherited microbatch or accumulation that the layer's --global-batch is no multiple of
/// on the ranks of `launch`.
///
/// Throws: Error{usage} as resolve_layout.
void drop_rival_batch(Layer& layer, const Launch& launch);

/// True where the ranks can do a whole number of such microbatches in a global batch, at least one
/// for each stage.
///
/// Throws: Error{usage} as resolve_layout.
[[nodiscard]] bool fits_ranks(std::int64_t microbatch, const Config& config, const Launch& launch);

}  // namespace dtrain::config
