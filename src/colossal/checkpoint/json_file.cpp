#include "colossal/checkpoint/json_file.h"

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::checkpoint {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int kMaxDepth = 100;

}  // namespace

nlohmann::json read_json_object(const std::string& path, const char* component) {
  using nlohmann::json;
  const std::string text = read_file(path, kMaxBytes);
  const auto check = [&](int depth, json::parse_event_t, json&) {
    require(depth <= kMaxDepth, component, path, ": nested too deeply");
    return true;
  };
  try {
    json value = json::parse(text, check);
    require(value.is_object(), component, path, ": must be a JSON object");
    return value;
  } catch (const json::exception& error) {
    throw Error(component, concat(path, ": not valid JSON: ", error.what()));
  }
}

std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return text.size() > 200 ? out + "..." : out;
}

}  // namespace colossal::checkpoint
