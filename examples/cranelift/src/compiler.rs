//! Compiles source to machine code with Cranelift, and converts Cranelift's data about the code for libjitsym.

use std::collections::HashMap;

use anyhow::{bail, Context as _, Result};
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::gimli::write::{Address, EhFrame, EndianVec, FrameTable};
use cranelift_codegen::gimli::RunTimeEndian;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, BlockArg, InstBuilder, SourceLoc, UserFuncName};
use cranelift_codegen::isa::unwind::UnwindInfo;
use cranelift_codegen::Context;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{default_libcall_names, FuncId, Linkage, Module, ModuleReloc};
use jitsym::{Bytes, Code, Line, Lines, Session, Unwind};

/// The data of a function that are kept until its address is known and it can be registered.
pub struct Function {
    pub name: String,
    id: FuncId,
    code: Vec<u8>,
    /// The unwind data; `None` if Cranelift has none, or if no table can be made from it.
    unwind: Option<UnwindInfo>,
    /// Offsets in the code, each with its line in the source.
    lines: Vec<(u32, u32)>,
}

pub struct Compiler {
    module: JITModule,
    builder_context: FunctionBuilderContext,
    names: HashMap<String, FuncId>,
}

impl Compiler {
    pub fn new() -> Result<Compiler> {
        let builder = JITBuilder::with_flags(&[("opt_level", "speed")], default_libcall_names())?;
        let module = JITModule::new(builder);
        Ok(Compiler { module, builder_context: FunctionBuilderContext::new(), names: HashMap::new() })
    }

    /// Compiles all functions of a program.
    pub fn compile(&mut self, source: &str) -> Result<Vec<Function>> {
        let mut functions = Vec::new();
        // Line numbers and words of the current function.
        let mut body: Vec<(u32, [&str; 2])> = Vec::new();
        for (number, text) in (1..).zip(source.lines()) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let [word, argument] = words[..] else { continue };
            if word.starts_with('#') {
                continue;
            }
            if word == "fn" && !body.is_empty() {
                functions.push(self.function(&body)?);
                body.clear();
            }
            body.push((number, [word, argument]));
        }
        if !body.is_empty() {
            functions.push(self.function(&body)?);
        }
        Ok(functions)
    }

    /// Compiles one function, whose first statement is `fn NAME`.
    fn function(&mut self, body: &[(u32, [&str; 2])]) -> Result<Function> {
        let (_, ["fn", name]) = body[0] else { bail!("line {}: a function has to begin first", body[0].0) };
        let mut context = self.module.make_context();
        let id = self.module.declare_function(name, Linkage::Local, &context.func.signature)?;
        self.names.insert(name.to_string(), id);
        context.func.name = UserFuncName::user(0, id.as_u32());
        self.translate(&mut context, body)?;

        context.compile(self.module.isa(), &mut ControlPlane::default()).map_err(|error| error.inner)?;
        let compiled = context.compiled_code().context("not compiled")?;
        let code = compiled.code_buffer().to_vec();
        let unwind = compiled.create_unwind_info(self.module.isa())?;
        let lines = compiled
            .buffer
            .get_srclocs_sorted()
            .iter()
            .filter(|place| !place.loc.is_default())
            .map(|place| (place.start, place.loc.bits()))
            .collect();
        let relocations: Vec<ModuleReloc> = compiled
            .buffer
            .relocs()
            .iter()
            .map(|relocation| ModuleReloc::from_mach_reloc(relocation, &context.func, id))
            .collect();

        // Free bytes after the code let `perf inject` of older builds of perf unwind through the code.
        let mut padded = code.clone();
        padded.resize(code.len() + jitsym::CODE_GAP_SIZE as usize, 0);
        let alignment = u64::from(compiled.buffer.alignment);
        self.module.define_function_bytes(id, alignment, &padded, &relocations)?;
        Ok(Function { name: name.to_string(), id, code, unwind, lines })
    }

    /// Translates the statements to Cranelift's intermediate code.
    fn translate(&mut self, context: &mut Context, body: &[(u32, [&str; 2])]) -> Result<()> {
        let mut builder = FunctionBuilder::new(&mut context.func, &mut self.builder_context);
        let entry = builder.create_block();
        builder.switch_to_block(entry);
        for &(number, [word, argument]) in body {
            // The line number passes through all of Cranelift's passes, and is returned with the offset in the machine code.
            builder.set_srcloc(SourceLoc::new(number));
            match word {
                "fn" => {}
                "spin" => {
                    let (again, after) = (builder.create_block(), builder.create_block());
                    builder.append_block_param(again, types::I64);
                    let count: i64 = argument.parse().with_context(|| format!("line {number}"))?;
                    let count = builder.ins().iconst(types::I64, count);
                    builder.ins().jump(again, &[BlockArg::from(count)]);
                    builder.switch_to_block(again);
                    let left = builder.block_params(again)[0];
                    let left = builder.ins().iadd_imm(left, -1);
                    let more = builder.ins().icmp_imm(IntCC::NotEqual, left, 0);
                    builder.ins().brif(more, again, &[BlockArg::from(left)], after, &[]);
                    builder.switch_to_block(after);
                }
                "call" => {
                    let callee = self.names.get(argument).with_context(|| format!("line {number}: {argument}?"))?;
                    let callee = self.module.declare_func_in_func(*callee, builder.func);
                    builder.ins().call(callee, &[]);
                }
                _ => bail!("line {number}: {word}?"),
            }
        }
        builder.ins().return_(&[]);
        builder.seal_all_blocks();
        builder.finalize();
        Ok(())
    }

    /// Writes the addresses into the code, and makes the code executable.
    pub fn finish(&mut self) -> Result<()> {
        Ok(self.module.finalize_definitions()?)
    }

    pub fn entry(&self, function: &Function) -> *const u8 {
        self.module.get_finalized_function(function.id)
    }

    /// Registers a function with libjitsym. The function must be at the address at which it will run.
    pub fn register(&self, session: &Session, function: &Function, path: &str) -> Result<()> {
        let entry = self.entry(function);
        let addr = entry as u64;
        // SAFETY: the code is at this address, and does not change as long as the module exists.
        let bytes = unsafe { std::slice::from_raw_parts(entry, function.code.len()) };
        let table = self.eh_frame(function.unwind.as_ref(), addr)?;
        let lines: Vec<Line<'_>> = function
            .lines
            .iter()
            .map(|&(offset, line)| Line { offset, line, column: 0, file: path.as_bytes() })
            .collect();
        session.register(&Code {
            bytes: Bytes::Here(bytes),
            unwind: table.as_ref().map_or(Unwind::None, |table| Unwind::EhFrame { bytes: table, addr: 0 }),
            lines: Lines::Rows(&lines),
            gap: true,
            ..Code::new(addr, bytes.len() as u64, &function.name)
        })?;
        Ok(())
    }

    /// Makes an `.eh_frame` section for one function at an address. `None` if Cranelift has no unwind data for the function.
    fn eh_frame(&self, unwind: Option<&UnwindInfo>, addr: u64) -> Result<Option<Vec<u8>>> {
        let isa = self.module.isa();
        let (Some(UnwindInfo::SystemV(unwind)), Some(cie)) = (unwind, isa.create_systemv_cie()) else {
            return Ok(None);
        };
        let mut table = FrameTable::default();
        let cie = table.add_cie(cie);
        table.add_fde(cie, unwind.to_fde(Address::Constant(addr)));
        let mut section = EhFrame(EndianVec::new(RunTimeEndian::Little));
        table.write_eh_frame(&mut section)?;
        Ok(Some(section.0.into_vec()))
    }
}
