#include "colossal/run/adapter_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::run {
namespace {

bool may_be_in_name(char c) {
  constexpr std::string_view kMarks = "-_.:@+";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kMarks.find(c) != std::string_view::npos;
}

}  // namespace

AdapterChoice parse_adapter(const std::string& text) {
  namespace fs = std::filesystem;
  AdapterChoice choice{.folder = text};
  std::error_code ignored;
  if (!fs::is_directory(text, ignored)) {
    const size_t equals = text.find('='), slash = text.find('/');
    if (equals != std::string::npos && equals < slash) {
      choice.name = text.substr(0, equals);
      choice.folder = text.substr(equals + 1);
      choice.has_name = true;
      require(!choice.name.empty(), "adapter", "--adapter must be [NAME=]FOLDER[:SCALE]: got an empty name in ", text);
    }
    const size_t colon = choice.folder.rfind(':');
    const char* const end = choice.folder.data() + choice.folder.size();
    if (colon != std::string::npos && !fs::is_directory(choice.folder, ignored)) {
      double scale = 1;
      const auto read = std::from_chars(choice.folder.data() + colon + 1, end, scale);
      if (read.ec == std::errc() && read.ptr == end) {
        require(std::isfinite(scale), "adapter", "the scale of --adapter must be a finite number: got ", text);
        choice.scale = scale;
        choice.folder.resize(colon);
      }
    }
  }
  require(!choice.folder.empty(), "adapter", "--adapter must be [NAME=]FOLDER[:SCALE]: got no folder in ",
          text.empty() ? "an empty text" : text);
  if (choice.name.empty()) {
    const fs::path path(choice.folder);
    choice.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  }
  return choice;
}

std::vector<AdapterChoice> parse_adapters(const std::vector<std::string>& texts, const std::string& base) {
  std::vector<AdapterChoice> choices;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    const AdapterChoice& choice = choices.emplace_back(parse_adapter(text));
    const std::string& name = choice.name;
    require(std::all_of(name.begin(), name.end(), may_be_in_name), "adapter",
            "the name of an adapter must have letters, digits and -_.:@+ alone: got ", printable(name),
            "; name it with --adapter NAME=", choice.folder);
    require(name != base, "adapter", "the name of an adapter must not be that of the model: got ", name,
            "; use another NAME in --adapter NAME=FOLDER, or name the model with --name");
    require(names.insert(name).second, "adapter", "the names of adapters must differ: got ", name,
            " twice; use another NAME in --adapter NAME=FOLDER");
  }
  return choices;
}

}  // namespace colossal::run
