// What can be asked of settings; the table itself is in schema.cpp.
#include "dtrain/config/schema.h"

namespace dtrain::config {

std::string_view name_of(Command command) noexcept {
  switch (command) {
    case Command::train:
      return "train";
    case Command::generate:
      return "generate";
    case Command::verify:
      return "verify";
    case Command::export_checkpoint:
      return "checkpoint export";
    case Command::import_checkpoint:
      return "checkpoint import";
  }
  return "train";
}

const Setting* find_key(std::string_view key) noexcept {
  for (const Setting& setting : settings()) {
    if (setting.key == key) return &setting;
  }
  return nullptr;
}

const Setting* find_flag(std::string_view flag) noexcept {
  for (const Setting& setting : settings()) {
    if (setting.flag == flag) return &setting;
  }
  return nullptr;
}

std::string working_choices(const Setting& setting) {
  std::string names;
  for (const Choice& choice : setting.choices) {
    if (!choice.works()) continue;
    if (!names.empty()) names += ", ";
    names += choice.name;
  }
  return names;
}

}  // namespace dtrain::config
