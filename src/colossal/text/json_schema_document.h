// A JSON Schema file: its schemas with their places, and what its references point to.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/text/json_decimal.h"

namespace colossal::text {

using Schema = nlohmann::ordered_json;

class SchemaDocument {
 public:
  /// Errors ("json schema"): no JSON, longer than 256 KiB, nested deeper than 100, two members of one name; no object,
  ///                         true or false; a $id or $anchor that occurs twice; a $id of more than
  ///                         2000 bytes after it is resolved.
  SchemaDocument(std::string_view text, const std::string& name);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const Schema& whole() const { return whole_; }
  bool is_old_draft() const { return is_old_draft_; }  ///< draft 3 or 4 by its $schema
  /// Where a schema is, for messages: "#/properties/age".
  std::string path(const Schema& schema) const;
  /// The schema that the $ref of `schema` points to, by the base URI of `schema`.
  /// Errors ("json schema"): a reference to another file or to nothing.
  const Schema& target(const Schema& schema) const;
  /// Keywords of `schema` under which other schemas are referred to: they hold schemas, whatever their names are.
  bool holds_targets(const Schema& schema, const std::string& keyword) const;
  /// A value in the spelling of the file, without spaces: numbers keep all digits.
  std::string spelled(const Schema& value) const;
  Decimal decimal(const Schema& number) const { return Decimal(spelled(number)); }
  /// A text that two values have in common if JSON Schema takes them for equal: 1.0 is 1, and members have no order.
  std::string canonical(const Schema& value) const;

  template <class... Parts>
  void check(bool ok, const Schema& schema, const Parts&... parts) const {
    if (!ok) fail(schema, concat(parts...));
  }
  [[noreturn]] void fail(const Schema& schema, const std::string& message) const;

 private:
  /// A schema with a URI of its own, and the schemas in it that have names.
  struct Resource {
    const Schema* root;
    std::map<std::string, const Schema*> anchors{};
  };
  void spell(const Schema& value, const std::vector<std::string>& floats, size_t& at);
  /// `base` must be a key of resources_.
  void find(const Schema& schema, const std::string& path, const std::string& base);
  void find_targets();
  const Schema* at_pointer(const Schema& root, const std::string& pointer, const std::string& base);

  std::string name_;
  bool is_old_draft_ = false;  // "id" instead of "$id"
  Schema whole_;
  std::map<const Schema*, std::string> spellings_;  // of numbers that are not 64-bit integers
  std::map<const Schema*, std::string> paths_;
  std::map<const Schema*, const std::string*> bases_;  // keys of resources_
  std::vector<const Schema*> references_;              // schemas with $ref, in the order in which they were found
  std::map<std::string, Resource> resources_;
  std::map<const Schema*, const Schema*> targets_;
  std::set<std::pair<const Schema*, std::string>> holders_;
};

}  // namespace colossal::text
