#include "colossal/run/adapter_choice.h"

#include <charconv>
#include <cmath>
#include <filesystem>

#include "colossal/base/error.h"

namespace colossal::run {

AdapterChoice parse_adapter(const std::string& text) {
  namespace fs = std::filesystem;
  AdapterChoice choice{.folder = text};
  std::error_code ignored;
  if (!fs::is_directory(text, ignored)) {
    const size_t equals = text.find('='), slash = text.find('/');
    if (equals != std::string::npos && equals < slash) {
      choice.name = text.substr(0, equals);
      choice.folder = text.substr(equals + 1);
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

}  // namespace colossal::run
