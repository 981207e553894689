#include "colossal/data/parquet/footer.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"

namespace colossal::data {
namespace {

// The numbers of fields in FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData, from parquet.thrift.
constexpr int kSchema = 2, kGroups = 4, kElementType = 1, kRepetition = 3, kElementName = 4, kChildren = 5;
constexpr int kConverted = 6, kLogical = 10, kLogicalText = 1;
constexpr int kChunks = 1, kRows = 3, kMeta = 3, kPath = 3;
constexpr int64_t kRequired = 0, kRepeated = 2, kUtf8 = 0;
constexpr int64_t kMaxFooterBytes = 16 << 20;
constexpr int64_t kMaxRows = int64_t{1} << 48;

const std::vector<formats::ThriftValue>& list_of(const formats::ThriftValue& value, int field) {
  const formats::ThriftValue* list = value.find(field);
  require(list != nullptr, "data", "the footer is damaged: it has no field ", field);
  return list->parts;
}

bool is_declared_text(const formats::ThriftValue& element) {
  const formats::ThriftValue* logical = element.find(kLogical);
  return element.number_of(kConverted, -1) == kUtf8 || (logical != nullptr && logical->find(kLogicalText) != nullptr);
}

bool is_path(const std::vector<formats::ThriftValue>& values, const std::vector<std::string>& path) {
  return std::equal(values.begin(), values.end(), path.begin(), path.end(),
                    [](const formats::ThriftValue& value, const std::string& name) { return value.bytes == name; });
}

}  // namespace

std::string ParquetLeaf::name() const {
  return join(path, ".", [](const std::string& part) { return printable(part); });
}

ParquetFooter::ParquetFooter(const InputFile& file) {
  constexpr int64_t kTail = 8;
  char tail[kTail] = {}, head[4] = {};
  if (file.size() >= kTail + 4) {
    file.read(0, 4, head);
    file.read(file.size() - kTail, kTail, tail);
  }
  const std::string_view mark(tail + 4, 4);
  require(mark != "PARE", "data", "it is encrypted, which is not supported");
  require(std::string_view(head, 4) == "PAR1" && mark == "PAR1", "data", "it is not a Parquet file, or cut short");
  uint32_t size = 0;
  std::memcpy(&size, tail, sizeof size);
  require(size <= kMaxFooterBytes && size <= file.size() - kTail - 4, "data", "the footer is damaged: ", size,
          " bytes");
  bytes_.resize(size);
  file.read(file.size() - kTail - size, size, bytes_.data());
  std::string_view rest = bytes_;
  root_ = formats::read_thrift(rest);
  groups_ = &list_of(root_, kGroups);
  read_leaves();
}

/// The schema lists the elements of a tree in depth-first order, each with its number of children.
void ParquetFooter::read_leaves() {
  constexpr size_t kMaxDepth = 64;
  struct Open {
    int64_t left;  // number of children that follow
    ParquetLeaf leaf;
  };
  const std::vector<formats::ThriftValue>& schema = list_of(root_, kSchema);
  std::vector<Open> open;
  for (size_t i = 1; i < schema.size(); ++i) {
    const int64_t children = schema[i].number_of(kChildren, 0), repetition = schema[i].number_of(kRepetition, 0);
    require(children >= 0 && children <= static_cast<int64_t>(schema.size()), "data",
            "the footer is damaged: ", children, " columns in one");
    while (!open.empty() && open.back().left == 0) open.pop_back();
    ParquetLeaf leaf = open.empty() ? ParquetLeaf{} : open.back().leaf;
    if (!open.empty()) --open.back().left;
    const formats::ThriftValue* name = schema[i].find(kElementName);
    leaf.path.emplace_back(name == nullptr ? std::string_view() : name->bytes);
    leaf.levels += repetition != kRequired;
    leaf.is_list = leaf.is_list || repetition == kRepeated;
    if (children > 0) {
      require(open.size() < kMaxDepth, "data", "its columns are nested more than ", kMaxDepth, " deep");
      open.push_back({children, std::move(leaf)});
      continue;
    }
    leaf.type = schema[i].number_of(kElementType, -1);
    leaf.is_text = is_declared_text(schema[i]);
    leaves_.push_back(std::move(leaf));
  }
}

int64_t ParquetFooter::rows(size_t group) const {
  const int64_t rows = groups_->at(group).number_of(kRows);
  require(rows >= 0 && rows <= kMaxRows, "data", "the footer is damaged: ", rows, " rows");
  return rows;
}

const formats::ThriftValue& ParquetFooter::chunk(size_t group, const std::vector<std::string>& path) const {
  for (const formats::ThriftValue& chunk : list_of(groups_->at(group), kChunks)) {
    const formats::ThriftValue* meta = chunk.find(kMeta);
    if (meta != nullptr && is_path(list_of(*meta, kPath), path)) return *meta;
  }
  throw Error("data", concat("a row group has no column ", ParquetLeaf{.path = path}.name()));
}

}  // namespace colossal::data
