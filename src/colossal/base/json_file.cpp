#include "colossal/base/json_file.h"

#include <set>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"

namespace colossal {
namespace {

using nlohmann::json;

/// Sees each part before it is kept, so that what is refused is never built.
class Guard {
 public:
  Guard(const std::string& name, const char* component, const JsonLimits& limits) : name_(name), component_(component), limits_(limits) {}

  void operator()(int depth, json::parse_event_t event, const json& value) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    require(!opens || depth < limits_.depth, component_, name_, ": nested too deeply, more than ", limits_.depth, " levels");
    if (!limits_.distinct_names) return;
    members_.resize(limits_.depth + 1);
    if (event == json::parse_event_t::object_start) members_[depth + 1].clear();  // its names come one level deeper
    if (event != json::parse_event_t::key) return;
    const auto& member = value.get_ref<const std::string&>();
    require(members_[depth].insert(member).second, component_, name_, ": two members are named ", printable(member));
  }

 private:
  const std::string& name_;
  const char* component_;
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> members_;  // seen so far of the open object of each depth
};

/// Without the library's own label in front: "[json.exception.parse_error.101] ".
std::string reason(const json::exception& error) {
  const std::string text = error.what();
  const size_t label = text.find("] ");
  return printable(label == std::string::npos ? text : text.substr(label + 2));
}

}  // namespace

json parse_json_object(std::string_view text, const std::string& name, const char* component, const JsonLimits& limits) {
  Guard guard(name, component, limits);
  const auto look = [&](int depth, json::parse_event_t event, json& value) {
    guard(depth, event, value);
    return true;
  };
  try {
    json value = json::parse(text.begin(), text.end(), look);
    require(value.is_object(), component, name, ": must be a JSON object");
    return value;
  } catch (const json::exception& error) {
    throw Error(component, concat(name, ": not valid JSON: ", reason(error)));
  }
}

json read_json_object(const std::string& path, const char* component, const JsonLimits& limits) {
  const auto file = InputFile::open(path);  // no pipe: nothing would end the wait for it
  require(file->size() <= limits.bytes, "file", path, " is too large: ", file->size(), " bytes, at most ", limits.bytes);
  return parse_json_object(file->content(), path, component, limits);
}

std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return text.size() > 200 ? out + "..." : out;
}

}  // namespace colossal
