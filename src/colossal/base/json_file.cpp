#include "colossal/base/json_file.h"

#include <set>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"

namespace colossal {
namespace {

using nlohmann::json;

/// Checks the text in a pass of its own, before the value is built, so a refused value is never built. The library's
/// own callback is no alternative: at the end of each object it visits all members of the enclosing object, which takes
/// a minute for a hundred thousand tensors.
class Guard final : public json::json_sax_t {
 public:
  Guard(const std::string& name, const char* component, const JsonLimits& limits, std::vector<std::string>* floats)
      : name_(name), component_(component), limits_(limits), floats_(floats) {}

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& member) override {
    require(limits_.members == 0 || ++counts_.back() <= limits_.members, component_, name_,
            ": an object has more than ", limits_.members, " members");
    const bool is_new = !limits_.distinct_names || members_.back().insert(member).second;
    require(is_new, component_, name_, ": two members are named ", printable(member));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string& spelling) override {
    if (floats_) floats_->push_back(spelling);
    return true;
  }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  // Returns false without a report, because json::parse() throws the error.
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool open() {
    require(static_cast<int>(members_.size()) < limits_.depth, component_, name_, ": nested too deeply, more than ",
            limits_.depth, " levels");
    members_.emplace_back();
    counts_.push_back(0);
    return true;
  }
  bool close() {
    members_.pop_back();
    counts_.pop_back();
    return true;
  }

  const std::string& name_;
  const char* component_;
  const JsonLimits& limits_;
  std::vector<std::string>* floats_;
  std::vector<std::set<std::string>> members_;  // the names seen in each open object; empty for a list
  std::vector<int64_t> counts_;                 // the members seen in each open object
};

/// Returns the message without the library's own label in front, such as "[json.exception.parse_error.101] ".
std::string reason(const json::exception& error) {
  const std::string text = error.what();
  if (text.find("UTF-8") != std::string::npos) {
    constexpr std::string_view kBefore = "parse error at ";
    const size_t place = text.find(kBefore), end = text.find(':', place);
    const bool has_place = place != std::string::npos && end != std::string::npos;
    return concat(has_place ? "near " + text.substr(place + kBefore.size(), end - place - kBefore.size()) + ": " : "",
                  "a byte that is not UTF-8; convert the text, for instance with iconv -f LATIN1 -t UTF-8");
  }
  const size_t label = text.find("] ");
  return printable(label == std::string::npos ? text : text.substr(label + 2));
}

template <class Json>
Json parsed(std::string_view text, const std::string& name, const char* component, const JsonLimits& limits,
            std::vector<std::string>* floats) {
  Guard guard(name, component, limits, floats);
  try {
    json::sax_parse(text.begin(), text.end(), &guard);
    return Json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    throw Error(component, concat(name, ": not valid JSON: ", reason(error)));
  }
}

/// A handler that records where the text stops being JSON.
class JsonEnd final : public nlohmann::json::json_sax_t {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    error = position;
    return false;
  }
  size_t error = 0;  ///< bytes read when the error was found; one more than the text has for an error at its end
};

}  // namespace

json parse_json(std::string_view text, const std::string& name, const char* component, const JsonLimits& limits) {
  return parsed<json>(text, name, component, limits, nullptr);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& name, const char* component,
                                          const JsonLimits& limits, std::vector<std::string>* floats) {
  return parsed<nlohmann::ordered_json>(text, name, component, limits, floats);
}

json parse_json_object(std::string_view text, const std::string& name, const char* component,
                       const JsonLimits& limits) {
  json value = parse_json(text, name, component, limits);
  require(value.is_object(), component, name, ": must be a JSON object");
  return value;
}

json read_json_object(const std::string& path, const char* component, const JsonLimits& limits) {
  const auto file = InputFile::open(path);  // refuses a pipe, because a read of it could wait forever
  require(file->size() <= limits.bytes, "file", path, " is too large: ", file->size(), " bytes, at most ",
          limits.bytes);
  return parse_json_object(file->content(), path, component, limits);
}

std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return text.size() > 200 ? out + "..." : out;
}

bool is_json(std::string_view text, bool is_whole) {
  JsonEnd end;
  return nlohmann::json::sax_parse(text, &end) || (!is_whole && end.error > text.size());
}

}  // namespace colossal
