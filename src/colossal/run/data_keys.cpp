#include "colossal/run/data_keys.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/run/config.h"

namespace colossal::run {
namespace {

constexpr char kSection[] = "data";

std::string with_section(const std::string& key) { return concat(kSection, ".", key); }

/// The section with keys of objectives, and with the keys of all runs for suggestions.
struct Section {
  struct Keys {
    DataConfig common{};
    std::vector<OwnKeys*> own;
    void fields(Fields& f) {
      common.common_fields(f);
      for (OwnKeys* keys : own) keys->fields(f);
    }
  };
  Keys keys;
  void fields(Fields& f) { f.section(kSection, keys, ""); }
};

std::vector<std::string> read(const ConfigDocument& own, std::vector<OwnKeys*> keys) {
  Section section{{.own = std::move(keys)}};
  return own.read(section);
}

/// Returns the names of the keys, with their section, the previous ones included.
std::set<std::string> names_of(const OwnKeys& keys) {
  std::set<std::string> names;
  for (const KeyHelp& key : describe_config(keys)) {
    names.insert(with_section(key.key));
    if (!key.previous.empty()) names.insert(with_section(key.previous));
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

std::string objectives_text(const std::vector<std::string>& names) {
  return concat(names.size() > 1 ? "the objectives " : "the objective ", joined(names));
}

/// Returns the objectives that have a key of that name.
std::vector<std::string> owners_of(const std::string& name, const std::vector<DataKeys>& known) {
  std::vector<std::string> owners;
  for (const DataKeys& one : known)
    if (names_of(one.keys).contains(name)) owners.push_back(one.objective);
  return owners;
}

/// Refuses a key that no objective has, and values that differ from the default of an objective other than the run's.
void check_keys_of_others(const ConfigDocument& others, const std::vector<DataKeys>& known,
                          const std::string& objective) {
  std::vector<DataKeys> given = known;
  std::vector<OwnKeys*> all;
  for (DataKeys& one : given) all.push_back(&one.keys);
  read(others, all);
  for (size_t i = 0; i < known.size(); ++i) {
    const std::vector<KeyHelp> values = describe_config(given[i].keys), defaults = describe_config(known[i].keys);
    for (size_t k = 0; k < values.size(); ++k) {
      if (values[k].default_value == defaults[k].default_value) continue;
      const std::string name = with_section(values[k].key), previous = with_section(values[k].previous);
      const auto found = others.values().find(others.values().contains(name) ? name : previous);
      const std::string place = found == others.values().end() ? "" : found->second.where;
      throw Error("config", concat(place, place.empty() ? "`" : ": `", name, "` belongs to ",
                                   objectives_text(owners_of(name, known)), ", and this run has ", objective, ": got ",
                                   values[k].default_value, "; leave it out"));
    }
  }
}

}  // namespace

ConfigDocument data_keys(const std::vector<std::string>& assignments) {
  ConfigDocument keys;
  for (const std::string& assignment : assignments) keys.set(concat("--", kSection, ".", assignment));
  return keys;
}

ConfigDocument data_document_of(OwnKeys keys) {
  return ConfigDocument::parse(fields_to_toml([&](Fields& f) { f.section(kSection, keys, ""); }), "the config");
}

OwnKeys read_data_keys(const ConfigDocument& own, const std::vector<DataKeys>& known, const std::string& objective,
                       std::vector<std::string>& notices) {
  const auto row =
      std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.objective == objective; });
  OwnKeys keys = row == known.end() ? OwnKeys() : row->keys;
  const std::set<std::string> names = names_of(keys);
  ConfigDocument mine, others;
  for (const auto& [key, value] : own.values()) (names.contains(key) ? mine : others).put(key, value);
  check_keys_of_others(others, known, objective);
  for (std::string& notice : read(mine, {&keys})) notices.push_back(std::move(notice));
  return keys;
}

void refuse_other_data_keys(const ConfigDocument& own, const std::vector<DataKeys>& known) {
  std::vector<DataKeys> given = known;
  std::vector<OwnKeys*> all;
  for (DataKeys& one : given) all.push_back(&one.keys);
  read(own, all);
}

std::vector<KeyHelp> describe_data_keys(const std::vector<DataKeys>& known) {
  std::vector<KeyHelp> all;
  std::vector<std::string> abouts;  // in the order in which they appear
  for (const DataKeys& one : known)
    for (KeyHelp& key : describe_config(one.keys)) {
      const auto is_same = [&](const KeyHelp& other) {
        return other.key == with_section(key.key) && other.meaning == key.meaning &&
               other.default_value == key.default_value;
      };
      if (std::any_of(all.begin(), all.end(), is_same)) continue;
      std::vector<std::string> owners;
      for (const DataKeys& other : known)
        for (const KeyHelp& same : describe_config(other.keys))
          if (same.key == key.key && same.meaning == key.meaning) owners.push_back(other.objective);
      key.key = with_section(key.key);
      key.section = kSection;
      key.section_help = concat("keys of ", objectives_text(owners));
      if (std::find(abouts.begin(), abouts.end(), key.section_help) == abouts.end()) abouts.push_back(key.section_help);
      all.push_back(std::move(key));
    }
  const auto place = [&](const KeyHelp& key) { return std::find(abouts.begin(), abouts.end(), key.section_help); };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return all;
}

}  // namespace colossal::run
