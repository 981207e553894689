#include "colossal/text/grammar/json_schema_document.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/join.h"
#include "colossal/base/json_file.h"

namespace colossal::text {
namespace {

/// scheme ":" ["//" authority] path ["?" query] ["#" fragment]; each part includes its delimiter, absent parts are
/// empty.
struct UriParts {
  std::string scheme, authority, path, query, fragment;
};

UriParts parts_of_uri(std::string text) {
  UriParts parts;
  const auto cut_from = [&text](size_t at) {
    const std::string rest = at < text.size() ? text.substr(at) : "";
    text.resize(std::min(at, text.size()));
    return rest;
  };
  parts.fragment = cut_from(text.find('#'));
  parts.query = cut_from(text.find('?'));
  const size_t colon = text.find(':');
  if (colon != std::string::npos && colon > 0 && colon < text.find('/') &&
      std::isalpha(static_cast<unsigned char>(text[0]))) {
    parts.scheme = text.substr(0, colon + 1);
    text.erase(0, colon + 1);
  }
  if (text.starts_with("//")) {
    parts.path = cut_from(std::min(text.find('/', 2), text.size()));
    parts.authority = text;
  } else {
    parts.path = text;
  }
  return parts;
}

/// Returns the path with its segments "." and ".." resolved.
std::string without_dots(const std::string& path) {
  std::vector<std::string> kept;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin + 1), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_last = end == path.size();
    if (part == "/.." || part == "/.") {
      if (part == "/.." && !kept.empty()) kept.pop_back();
      if (is_last) kept.push_back("/");
    } else {
      kept.push_back(part);
    }
    begin = end;
  }
  return join(kept, "");
}

/// Returns `reference` resolved against the absolute URI `base`, without the fragment of `base` (RFC 3986).
std::string resolved_uri(const std::string& base, const std::string& reference) {
  const UriParts from = parts_of_uri(base);
  UriParts to = parts_of_uri(reference);
  if (!to.scheme.empty()) return to.scheme + to.authority + without_dots(to.path) + to.query + to.fragment;
  to.scheme = from.scheme;
  if (to.authority.empty()) {
    to.authority = from.authority;
    if (to.path.empty()) {
      to.path = from.path;
      if (to.query.empty()) to.query = from.query;
    } else if (to.path[0] != '/') {
      const size_t slash = from.path.rfind('/');
      to.path = (slash == std::string::npos ? "/" : from.path.substr(0, slash + 1)) + to.path;
    }
  }
  return to.scheme + to.authority + without_dots(to.path) + to.query + to.fragment;
}

/// Returns `text` with each %XX replaced by the byte that it encodes.
std::string percent_decoded(const std::string& text) {
  const auto is_digit = [&](size_t i) { return i < text.size() && std::isxdigit(static_cast<unsigned char>(text[i])); };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

constexpr char kSchemaComponent[] = "json schema";
constexpr char kNoUri[] = "schema:///";  // base URI of a file without $id
constexpr size_t kMaxUriBytes = 2000;    // maximum size of a $id; every $id below a long one has a long URI of its own

// Keywords whose value is a schema, a list of schemas, or an object of schemas.
const std::set<std::string> kHoldOne = {
    "items",         "additionalItems",  "additionalProperties", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties"};
const std::set<std::string> kHoldLists = {"anyOf", "oneOf", "allOf", "prefixItems", "items"};
const std::set<std::string> kHoldObjects = {"properties",  "patternProperties", "$defs",
                                            "definitions", "dependentSchemas",  "dependencies"};

const std::string* string_at(const Schema& schema, const char* keyword) {
  const auto at = schema.find(keyword);
  return at == schema.end() ? nullptr : at->get_ptr<const std::string*>();
}

}  // namespace

SchemaDocument::SchemaDocument(std::string_view text, const std::string& name) : name_(name) {
  std::vector<std::string> floats;
  whole_ =
      parse_ordered_json(text, name, kSchemaComponent, {.bytes = int64_t{1} << 18, .distinct_names = true}, &floats);
  require(whole_.is_object() || whole_.is_boolean(), kSchemaComponent, name, ": must be a JSON object, true or false");
  size_t at = 0;
  spell(whole_, floats, at);
  if (const std::string* draft = whole_.is_object() ? string_at(whole_, "$schema") : nullptr)
    is_old_draft_ = draft->find("draft-03") != std::string::npos || draft->find("draft-04") != std::string::npos;
  const auto unnamed = resources_.try_emplace(kNoUri, Resource{&whole_}).first;
  find(whole_, "#", unnamed->first);
  find_targets();
}

void SchemaDocument::spell(const Schema& value, const std::vector<std::string>& floats, size_t& at) {
  if (value.is_number_float()) spellings_[&value] = floats[at++];
  if (value.is_structured())
    for (const Schema& part : value) spell(part, floats, at);
}

std::string SchemaDocument::path(const Schema& schema) const {
  const auto at = paths_.find(&schema);
  return at == paths_.end() ? "#" : at->second;
}

void SchemaDocument::fail(const Schema& schema, const std::string& message) const {
  throw Error(kSchemaComponent, concat(name_, " ", path(schema), ": ", message));
}

// Finds all schemas below one, with their base URIs. The parser has already bounded the depth.
void SchemaDocument::find(const Schema& schema, const std::string& path, const std::string& base) {
  if (!paths_.emplace(&schema, path).second) return;
  const std::string* own = &base;
  if (schema.is_object()) {
    if (const std::string* id = string_at(schema, is_old_draft_ ? "id" : "$id")) {
      if (id->starts_with("#")) {
        check(resources_.at(base).anchors.emplace(id->substr(1), &schema).second, schema, "the $id ", printable(*id),
              " occurs twice");
      } else {
        std::string uri = resolved_uri(base, *id);
        uri.resize(std::min(uri.find('#'), uri.size()));
        check(uri.size() <= kMaxUriBytes, schema, "$id must be a URI of at most ", kMaxUriBytes,
              " bytes when it is resolved: got ", uri.size(), "; use a shorter one");
        const auto [at, is_new] = resources_.try_emplace(std::move(uri), Resource{&schema});
        check(is_new || at->second.root == &schema, schema, "the $id ", printable(*id), " occurs twice");
        own = &at->first;
      }
    }
    if (const std::string* anchor = string_at(schema, "$anchor"))
      check(resources_.at(*own).anchors.emplace(*anchor, &schema).second, schema, "the $anchor ", printable(*anchor),
            " occurs twice");
    if (schema.contains("$ref")) references_.push_back(&schema);
  }
  bases_[&schema] = own;
  if (!schema.is_object()) return;
  for (const auto& [keyword, value] : schema.items()) {
    const std::string below = path + "/" + printable(keyword);
    if (kHoldOne.contains(keyword) && !value.is_array()) find(value, below, *own);
    if (kHoldLists.contains(keyword) && value.is_array())
      for (size_t i = 0; i < value.size(); ++i) find(value[i], concat(below, "/", i), *own);
    if (kHoldObjects.contains(keyword) && value.is_object())
      for (const auto& [name, one] : value.items())
        if (!one.is_array()) find(one, below + "/" + printable(name), *own);
  }
}

// The list grows during the loop: a target may be below a keyword that is not read, and may contain references.
void SchemaDocument::find_targets() {
  for (size_t i = 0; i < references_.size(); ++i) {
    const Schema& schema = *references_[i];
    const std::string* reference = string_at(schema, "$ref");
    check(reference, schema, "$ref must be a string");
    const std::string* id = string_at(schema, "$id");
    check(!id || id->starts_with("#") || &schema == &whole_, schema,
          "\"$id\" with \"$ref\" is not supported, because drafts of the standard differ on it; leave one of them out");
    std::string uri = resolved_uri(*bases_.at(&schema), *reference);
    const size_t mark = std::min(uri.find('#'), uri.size());
    const std::string fragment = mark < uri.size() ? percent_decoded(uri.substr(mark + 1)) : "";
    uri.resize(mark);
    const auto resource = resources_.find(uri);
    const Schema* found = nullptr;
    if (resource != resources_.end()) {
      const auto anchor = resource->second.anchors.find(fragment);
      if (fragment.empty() || fragment[0] == '/')
        found = at_pointer(*resource->second.root, fragment, resource->first);
      else if (anchor != resource->second.anchors.end())
        found = anchor->second;
    }
    check(found, schema, "$ref must point to a schema of this file, as \"#/$defs/name\" does: got ",
          printable(*reference));
    targets_[&schema] = found;
  }
}

const Schema* SchemaDocument::at_pointer(const Schema& root, const std::string& pointer, const std::string& base) {
  const Schema* at = &root;
  const std::string* own = &base;
  std::string path = this->path(root);
  for (size_t begin = 0; begin < pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string step;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool is_escaped = pointer[i] == '~' && i + 1 < end;
      step += !is_escaped ? pointer[i] : pointer[++i] == '1' ? '/' : '~';
    }
    begin = end;
    const Schema* next = nullptr;
    if (at->is_object() && at->contains(step)) next = &at->at(step);
    const bool is_index = !step.empty() && step.size() < 7 && step.find_first_not_of("0123456789") == std::string::npos;
    if (at->is_array() && is_index && std::stoul(step) < at->size()) next = &(*at)[std::stoul(step)];
    if (!next) return nullptr;
    path += "/" + printable(step);
    if (const auto known = bases_.find(next); known != bases_.end()) own = known->second;
    at = next;
  }
  find(*at, path, *own);
  return at;
}

const Schema& SchemaDocument::target(const Schema& schema) const { return *targets_.at(&schema); }

std::string SchemaDocument::spelled(const Schema& value) const {
  const auto known = spellings_.find(&value);
  if (known != spellings_.end()) return known->second;
  if (!value.is_structured()) return value.dump();
  std::string text = value.is_array() ? "[" : "{";
  for (const auto& [name, part] : value.items()) {
    if (text.size() > 1) text += ",";
    if (value.is_object()) text += Schema(name).dump() + ":";
    text += spelled(part);
  }
  return text + (value.is_array() ? "]" : "}");
}

std::string SchemaDocument::canonical(const Schema& value) const {
  if (value.is_number()) return decimal(value).text();
  if (!value.is_structured()) return value.dump();
  std::map<std::string, std::string> members;  // sorted by name
  std::string text;
  for (const auto& [name, part] : value.items()) {
    const std::string own = canonical(part);
    if (value.is_object())
      members[name] = own;
    else
      text += own + ",";
  }
  for (const auto& [name, own] : members) text += Schema(name).dump() + ":" + own + ",";
  return (value.is_array() ? "[" : "{") + text + (value.is_array() ? "]" : "}");
}

}  // namespace colossal::text
