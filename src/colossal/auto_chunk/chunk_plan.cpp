#include "colossal/auto_chunk/chunk_plan.h"

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"

namespace colossal::auto_chunk {

void ChunkRegion::fields(Fields& f) {
  f.member("region", region), f.member("dim", dim), f.member("size", size);
  f.member("nodes", nodes), f.member("cuts", cuts), f.member("repeated", repeated);
}

void ChunkPlan::fields(Fields& f) { f.list("regions", regions); }

std::string print_chunks(const ChunkPlan& plan) { return json_line(to_json_object(plan)) + "\n"; }

void write_chunks(const ChunkPlan& plan, const std::string& path) { write_file(path, print_chunks(plan)); }

ChunkPlan read_chunks(const std::string& path) {
  try {
    return read_stored<ChunkPlan>(read_json_object(path, "chunks"), "chunks");
  } catch (const Error& error) {
    if (error.component() == "file") throw;
    throw Error("chunks", path + ": " + error.message());
  }
}

}  // namespace colossal::auto_chunk
