#include "colossal/base/json_text.h"

#include "colossal/base/json.h"

namespace colossal {
namespace {

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

bool is_json(std::string_view text, bool is_whole) {
  JsonEnd end;
  return nlohmann::json::sax_parse(text, &end) || (!is_whole && end.error > text.size());
}

}  // namespace colossal
