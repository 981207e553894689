#include "colossal/base/config_json.h"

#include <cmath>
#include <vector>

namespace colossal {
namespace {

nlohmann::ordered_json json_of(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

template <class Value>
nlohmann::ordered_json json_of(const Value& value) {
  return value;
}

class JsonPrinter : public Fields {
 public:
  JsonPrinter() : open_{&root} {}
  nlohmann::ordered_json root = nlohmann::ordered_json::object();

 private:
  void visit(const Field& field) override {
    std::visit([&](const auto* value) { (*open_.back())[field.name] = json_of(*value); }, field.value);
  }
  // An ordered object is a vector: a new member may move its elder siblings, never the objects that hold them, and
  // those are the only ones still open.
  void enter(const char* name, const char*, const char*) override {
    auto& section = (*open_.back())[name];
    section = nlohmann::ordered_json::object();
    open_.push_back(&section);
  }
  void leave() override { open_.pop_back(); }
  std::vector<nlohmann::ordered_json*> open_;
};

}  // namespace

nlohmann::ordered_json fields_to_json(const std::function<void(Fields&)>& visit) {
  JsonPrinter printer;
  visit(printer);
  return printer.root;
}

}  // namespace colossal
