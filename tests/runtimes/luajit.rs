//! LuaJIT, with the guest of `tests/luajit`.
